#include "server/http_library.h"

#include <dlfcn.h>

namespace tael::server {
namespace {

constexpr const char* kFile = "libmicrohttpd.so.12";

Error Missing() {
  const char* why = dlerror();
  return Error{ErrorCode::kUnsupported, "the server needs libmicrohttpd 0.9.73 or newer",
               std::string(why != nullptr ? why : kFile) + "; Debian's package is libmicrohttpd12"};
}

template <class Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<HttpLibrary> HttpLibrary::Load() {
  void* const file = dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (file == nullptr) return Missing();
  HttpLibrary out;
  const bool has_all =
      Find(file, "MHD_start_daemon", out.start_daemon) &&
      Find(file, "MHD_quiesce_daemon", out.quiesce_daemon) &&
      Find(file, "MHD_stop_daemon", out.stop_daemon) &&
      Find(file, "MHD_get_connection_info", out.get_connection_info) &&
      Find(file, "MHD_get_connection_values", out.get_connection_values) &&
      Find(file, "MHD_create_response_from_callback", out.create_response_from_callback) &&
      Find(file, "MHD_create_response_from_buffer_with_free_callback_cls",
           out.create_response_from_buffer) &&
      Find(file, "MHD_add_response_header", out.add_response_header) &&
      Find(file, "MHD_queue_response", out.queue_response) &&
      Find(file, "MHD_destroy_response", out.destroy_response);
  if (!has_all) return Missing();
  return out;
}

}  // namespace tael::server
