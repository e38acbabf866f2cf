// libmicrohttpd, loaded when a server starts: it brings GnuTLS and six more libraries with it,
// which cost every `tael run` 0.4 MB of anonymous memory and 2.9 MB of planned code if they were
// linked.
#pragma once

#include <microhttpd.h>

#include "base/result.h"

namespace tael::server {

// The functions that we use, by their own names.
struct HttpLibrary {
  // Stays loaded until the process ends. Fails: kUnsupported, naming what is missing.
  static Result<HttpLibrary> Load();

  decltype(&MHD_start_daemon) start_daemon = nullptr;
  decltype(&MHD_quiesce_daemon) quiesce_daemon = nullptr;
  decltype(&MHD_stop_daemon) stop_daemon = nullptr;
  decltype(&MHD_get_connection_info) get_connection_info = nullptr;
  decltype(&MHD_get_connection_values) get_connection_values = nullptr;
  decltype(&MHD_create_response_from_callback) create_response_from_callback = nullptr;
  decltype(&MHD_create_response_from_buffer_with_free_callback_cls) create_response_from_buffer =
      nullptr;
  decltype(&MHD_add_response_header) add_response_header = nullptr;
  decltype(&MHD_queue_response) queue_response = nullptr;
  decltype(&MHD_destroy_response) destroy_response = nullptr;
};

}  // namespace tael::server
