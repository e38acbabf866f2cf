# One CMake target per layer of the house (docs/architecture.md).
#
#   tael_layer(NAME [DEPS layer...] [LIBS library...])
#
# makes tael_NAME from src/NAME/*.cpp, and tests tael_NAME_tests from src/NAME/*_test.cpp.
function(tael_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;SOURCES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM ARG_DEPS PREPEND tael_)

  if(NOT sources)
    add_library(tael_${name} INTERFACE)  # a layer that has no code yet
    return()
  endif()
  add_library(tael_${name} STATIC ${sources} ${ARG_SOURCES})
  target_include_directories(tael_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(tael_${name} PUBLIC ${ARG_DEPS} ${ARG_LIBS})

  if(TAEL_TESTS AND tests)
    tael_test(tael_${name}_tests SOURCES ${tests} LIBS tael_${name})
  endif()
endfunction()

# tael_test(NAME SOURCES file... LIBS library...): a GoogleTest program, each test known to ctest.
function(tael_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  # What is tested keeps its flags; tests themselves are worth no optimiser's time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TAEL_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600)
endfunction()
