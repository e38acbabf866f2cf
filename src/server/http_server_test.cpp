#include "server/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "server/testing.h"

namespace tael::server {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Goes on until the client leaves.
class EndlessStream final : public BodyStream {
 public:
  EndlessStream(const Client& client, std::atomic<int>& gone)
      : hook_(client, [this, &gone] {
          ++gone;
          left_ = true;
        }) {}
  bool Next(std::string& out) override {
    std::this_thread::sleep_for(5ms);
    out += "tick\n";
    return !left_;
  }

 private:
  std::atomic<bool> left_{false};
  GoneHook hook_;
};

class TestHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> OnHead(HttpRequest& head) override {
    if (head.path == "/refused") return Text(401, "refused");
    return std::nullopt;
  }
  HttpResponse OnRequest(HttpRequest& request) override {
    if (request.path == "/endless") {
      HttpResponse response;
      response.stream = std::make_unique<EndlessStream>(request.client, gone);
      return response;
    }
    if (request.path == "/slow") {
      std::atomic<bool> left{false};
      const GoneHook hook(request.client, [&] {
        ++gone;
        left = true;
      });
      for (int i = 0; i < 1000 && !left; ++i) std::this_thread::sleep_for(5ms);
    }
    if (request.path == "/throws") throw std::bad_alloc();
    return Text(200, request.method + " " + request.path + " " + std::string(request.Query("q")) +
                         " [" + request.body + "]");
  }
  HttpResponse OnBodyTooLarge(uint64_t) override { return Text(413, "too large"); }
  HttpResponse OnOverload(std::string_view why) override { return Text(503, std::string(why)); }
  void OnStatus(int) override {}
  void OnConnections(size_t) override {}

  std::atomic<int> gone{0};

 private:
  static HttpResponse Text(int status, std::string body) {
    HttpResponse response;
    response.status = status;
    response.content_type = "text/plain";
    response.body = std::move(body);
    return response;
  }
};

// A client that speaks in raw bytes.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const timeval patience{5, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  bool Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Until `what` has come, or the connection ends.
  std::string ReadUntil(std::string_view what) {
    std::string out;
    char bytes[4096];
    while (what.empty() || out.find(what) == std::string::npos) {
      const ssize_t count = recv(fd_.get(), bytes, sizeof bytes, 0);
      if (count <= 0) {
        timed_out_ = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        break;
      }
      out.append(bytes, static_cast<size_t>(count));
    }
    return out;
  }
  std::string ReadToTheEnd() { return ReadUntil(""); }
  bool timed_out() const { return timed_out_; }  // the last read, before the connection ended
  void Leave() { fd_ = FileDescriptor(); }

 private:
  FileDescriptor fd_;
  bool timed_out_ = false;
};

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    auto accounts = HttpAccounts::Create(budget_, options);
    ASSERT_TRUE(accounts.has_value());
    connections_ = accounts->connections.get();
    bodies_ = accounts->bodies.get();
    auto socket = ListenSocket::Bind("127.0.0.1", 0);
    ASSERT_TRUE(socket.has_value());
    port_ = socket->port();
    auto server = HttpServer::Create(options, *std::move(socket), *std::move(accounts), handler_);
    ASSERT_TRUE(server.has_value()) << server.error().Message();
    server_ = *std::move(server);
  }
  RawClient Connect() const { return RawClient(port_); }
  std::string Ask(std::string_view request, std::string_view until) const {
    RawClient client = Connect();
    EXPECT_TRUE(client.Send(request));
    return client.ReadUntil(until);
  }

  mem::MemoryBudget budget_{0};
  TestHandler handler_;
  uint16_t port_ = 0;
  const MemoryAccount* connections_ = nullptr;  // server_'s
  const MemoryAccount* bodies_ = nullptr;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, RequestsOfOneConnectionAreAnsweredInTurn) {
  Start();
  RawClient client = Connect();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send("GET /a%20b?q=x%3Dy HTTP/1.1\r\nHost: h\r\n\r\n"));
    EXPECT_THAT(client.ReadUntil("]"), HasSubstr("GET /a b x=y []"));
  }
  ASSERT_TRUE(client.Send("POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"));
  EXPECT_THAT(client.ReadUntil("]"), HasSubstr("POST /c  [body]"));
}

TEST_F(HttpServerTest, AChunkedBodyIsPutTogether) {
  Start();
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
                  "]"),
              HasSubstr("[body]"));
}

TEST_F(HttpServerTest, ABodyThatIsTooLargeGets413HoweverItComes) {
  Start({.max_body_bytes = 1000});
  const std::string large(100'000, 'x');
  EXPECT_THAT(
      Ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + large, "too large"),
      StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n186A0\r\n" +
                      large + "\r\n0\r\n\r\n",
                  "too large"),
              StartsWith("HTTP/1.1 413"));
  // One byte more than the limit, and the limit itself.
  EXPECT_THAT(
      Ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x'),
          "too large"),
      StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(
      Ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'x'),
          "]"),
      StartsWith("HTTP/1.1 200"));
  EXPECT_TRUE(Soon([&] { return connections_->used_bytes() + bodies_->used_bytes() == 0; }));
}

TEST_F(HttpServerTest, ABodyWithoutAnEndIsCut) {
  Start({.max_body_bytes = 1000});
  RawClient client = Connect();
  ASSERT_TRUE(client.Send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "10000\r\n" + std::string(65536, 'x') + "\r\n";
  size_t sent = 0;
  while (sent < 1000 && client.Send(chunk)) ++sent;
  EXPECT_LT(sent, 1000u) << "64 MB went through";
}

TEST_F(HttpServerTest, AClientThatAsksFirstHearsTheRefusalAtOnce) {
  Start({.max_body_bytes = 1000});
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
                  "Content-Length: 100000\r\n\r\n",
                  "too large"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(
      Ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900000000000\r\n\r\n", "too large"),
      StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, ARefusalOfTheHeadComesWhateverTheBodyIs) {
  Start();
  EXPECT_THAT(Ask("POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", "refused"),
              StartsWith("HTTP/1.1 401"));
}

TEST_F(HttpServerTest, ABodyThatDoesNotFitTheLedgerIsRefusedBeforeItIsRead) {
  Start({.max_body_bytes = 60'000});
  RawClient slow = Connect();
  ASSERT_TRUE(slow.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n"));
  EXPECT_TRUE(Soon([&] { return bodies_->used_bytes() == kBytesPerBodyByte * 50'000; }));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
                  "Content-Length: 20000\r\n\r\n",
                  "again"),
              StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody", "]"),
              StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, BodiesTakeNothingOfWhatConnectionsNeed) {
  Start({.max_body_bytes = 60'000});
  RawClient slow = Connect();
  ASSERT_TRUE(slow.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n"));
  EXPECT_TRUE(Soon([&] { return bodies_->used_bytes() == kBytesPerBodyByte * 60'000; }));
  const RawClient other = Connect();
  EXPECT_TRUE(Soon([&] { return connections_->used_bytes() == 2 * kConnectionBytes; }));
}

TEST_F(HttpServerTest, ABodyOfUnknownLengthIsChargedForNoMoreThanTheLargest) {
  Start({.max_body_bytes = 1000});
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3E8\r\n" +
                      std::string(1000, 'x') + "\r\n0\r\n\r\n",
                  "]"),
              StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, MoreConnectionsThanAllowedAreToldSo) {
  Start({.max_connections = 2});
  RawClient first = Connect(), second = Connect();
  ASSERT_TRUE(first.Send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(first.ReadUntil("]"), StartsWith("HTTP/1.1 200"));
  ASSERT_TRUE(second.Send("GET /2 HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(second.ReadUntil("]"), StartsWith("HTTP/1.1 200"));
  const std::string third = Ask("GET /3 HTTP/1.1\r\nHost: h\r\n\r\n", "connections");
  EXPECT_THAT(third, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(third, HasSubstr("Connection: close"));
  first.Leave();
  EXPECT_TRUE(Soon([&] {
    return Ask("GET /4 HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n").starts_with("HTTP/1.1 200");
  }));
}

TEST_F(HttpServerTest, ARequestThatDribblesInIsCut) {
  Start({.time = {.request = 200ms, .answer = 10s}});
  for (const std::string head :
       {"GET / HT", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n"}) {
    RawClient client = Connect();
    ASSERT_TRUE(client.Send(head));
    const auto start = std::chrono::steady_clock::now();
    bool open = true;
    for (int i = 0; i < 100 && open; ++i) {
      std::this_thread::sleep_for(20ms);
      open = client.Send("x");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 1500ms) << head;
  }
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosed) {
  Start({.time = {.request = 100ms, .answer = 10s}});
  RawClient client = Connect();
  ASSERT_TRUE(client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(client.ReadToTheEnd(), HasSubstr("[]"));
  EXPECT_FALSE(client.timed_out());
}

TEST_F(HttpServerTest, AnAnswerThatIsNotTakenIsCut) {
  Start({.max_body_bytes = 32 << 20, .time = {.request = 10s, .answer = 200ms}});
  RawClient client = Connect();
  const std::string body(20 << 20, 'x');  // more than any socket buffer
  ASSERT_TRUE(client.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  std::this_thread::sleep_for(1s);
  EXPECT_LT(client.ReadToTheEnd().size(), body.size());
}

TEST_F(HttpServerTest, AConnectionWithinTheLimitIsServedWhileOthersAreAboveIt) {
  Start({.max_connections = 1});
  RawClient first = Connect();
  EXPECT_TRUE(Soon([&] { return connections_->used_bytes() == kConnectionBytes; }));
  const RawClient spare = Connect();
  EXPECT_TRUE(Soon([&] { return connections_->used_bytes() == 2 * kConnectionBytes; }));
  ASSERT_TRUE(first.Send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(first.ReadUntil("]"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ConnectionsThatAreTooManyEvenForThatWaitAndAreAnsweredLater) {
  Start({.max_connections = 1});
  std::vector<RawClient> many;
  for (uint32_t i = 0; i < 1 + kSpareConnections; ++i) many.push_back(Connect());
  EXPECT_TRUE(Soon([&] { return connections_->used_bytes() == many.size() * kConnectionBytes; }));
  RawClient late = Connect();
  ASSERT_TRUE(late.Send("GET /late HTTP/1.1\r\nHost: h\r\n\r\n"));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(connections_->used_bytes(), many.size() * kConnectionBytes);  // it waits
  many.clear();
  EXPECT_THAT(late.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 "));
}

TEST_F(HttpServerTest, AClientThatLeavesAStreamIsNoticed) {
  Start();
  RawClient client = Connect();
  ASSERT_TRUE(client.Send("GET /endless HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(client.ReadUntil("tick"), HasSubstr("chunked"));
  EXPECT_EQ(handler_.gone, 0);
  client.Leave();
  EXPECT_TRUE(Soon([&] { return handler_.gone == 1; }));
  EXPECT_TRUE(Soon([&] { return connections_->used_bytes() + bodies_->used_bytes() == 0; }));
}

TEST_F(HttpServerTest, AClientThatLeavesBeforeTheAnswerIsNoticed) {
  Start();
  RawClient client = Connect();
  ASSERT_TRUE(client.Send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(handler_.gone, 0);
  client.Leave();
  EXPECT_TRUE(Soon([&] { return handler_.gone == 1; }));
}

TEST_F(HttpServerTest, StopEndsStreamsAndAcceptsNoMore) {
  Start();
  RawClient client = Connect();
  ASSERT_TRUE(client.Send("GET /endless HTTP/1.1\r\nHost: h\r\n\r\n"));
  client.ReadUntil("tick");
  const auto start = std::chrono::steady_clock::now();
  server_->Stop(100ms);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
  EXPECT_EQ(handler_.gone, 1);
  client.ReadToTheEnd();
  EXPECT_EQ(connections_->used_bytes() + bodies_->used_bytes(), 0u);
}

TEST_F(HttpServerTest, StopLetsAnAnswerEnd) {
  Start();
  RawClient client = Connect();
  ASSERT_TRUE(client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n"));
  client.ReadUntil("]");
  const auto start = std::chrono::steady_clock::now();
  server_->Stop(10s);  // returns at once: nothing runs
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  EXPECT_EQ(client.ReadToTheEnd(), "");
  EXPECT_FALSE(client.timed_out());
}

TEST_F(HttpServerTest, GarbageEndsItsConnectionAndNothingElse) {
  Start();
  for (const std::string& garbage :
       {std::string("\0\1\2\3\r\n\r\n", 8), std::string("GET\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01", 6),
        "GET / HTTP/1.1\r\nHost: h\r\n" + std::string(100'000, 'h') + ": x\r\n\r\n",
        "GET /" + std::string(100'000, 'u') + " HTTP/1.1\r\nHost: h\r\n\r\n",
        std::string("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    RawClient client = Connect();
    client.Send(garbage);
    client.Leave();
  }
  EXPECT_THAT(Ask("GET /throws HTTP/1.1\r\nHost: h\r\n\r\n", "]"), Not(HasSubstr("200")));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "]"), StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace tael::server
