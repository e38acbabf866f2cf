// The routes, each a function from a request to a response.
#pragma once

#include "server/http_message.h"
#include "server/service.h"

namespace tael::server {

// generate_routes.cpp
HttpResponse ChatCompletions(Service& service, HttpRequest& request);
HttpResponse Completions(Service& service, HttpRequest& request);
HttpResponse Embeddings(Service& service, HttpRequest& request);

// token_routes.cpp
HttpResponse Tokenize(Service& service, HttpRequest& request);
HttpResponse Detokenize(Service& service, HttpRequest& request);

// status_routes.cpp
HttpResponse FrontPage(Service& service, HttpRequest& request);
HttpResponse Health(Service& service, HttpRequest& request);
HttpResponse Models(Service& service, HttpRequest& request);
HttpResponse Model(Service& service, HttpRequest& request);
HttpResponse PrometheusMetrics(Service& service, HttpRequest& request);

// memory_routes.cpp
HttpResponse Memory(Service& service, HttpRequest& request);
HttpResponse TrimMemory(Service& service, HttpRequest& request);

}  // namespace tael::server
