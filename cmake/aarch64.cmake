# Debian's cross compiler; programs run under qemu-user. TAEL_QEMU_CPU picks the CPU that tests see.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
set(CMAKE_PREFIX_PATH /usr/lib/aarch64-linux-gnu)
# The libraries of the arm64 packages (-L /), not those of the cross compiler: the latter are older,
# and a program that mixes the two hangs when it starts a thread.
set(TAEL_QEMU_CPU max CACHE STRING "CPU model that qemu-aarch64 emulates for the tests")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-cpu;${TAEL_QEMU_CPU};-L;/)
