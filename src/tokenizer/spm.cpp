// See spm.h.
#include "tokenizer/spm.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/utf8.h"
#include "tokenizer/special.h"

namespace tael::tokenizer {
namespace {

constexpr const char* kUnknownKey = "tokenizer.ggml.unknown_token_id";
constexpr const char* kSpacePrefixKey = "tokenizer.ggml.add_space_prefix";
constexpr const char* kArchitectureKey = "general.architecture";

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

constexpr uint32_t kNoSymbol = UINT32_MAX;

// Symbols are numbered in 32 bits; a longer text (over 1 GiB) is encoded in parts.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

struct Symbol {
  uint32_t begin = 0;   // in the escaped text
  uint32_t length = 0;  // 0: joined to its left neighbour
  uint32_t prev = kNoSymbol;
  uint32_t next = kNoSymbol;
};

// "<0x0A>" -> 10.
std::optional<uint8_t> ByteOfSpelling(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') {
    return std::nullopt;
  }
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(&spelling[3], &spelling[5], byte, 16);
  if (error != std::errc() || end != &spelling[5]) return std::nullopt;
  return byte;
}

struct QueueEntry {
  float score = 0;
  uint32_t left = 0;
  uint32_t length = 0;  // of both together; tells whether the pair is still the one that was meant
};

// The highest score joins first, and of equal ones the leftmost.
bool JoinsLater(const QueueEntry& a, const QueueEntry& b) {
  return a.score != b.score ? a.score < b.score : a.left > b.left;
}

std::string_view TextOf(std::string_view text, const Symbol& symbol) {
  return text.substr(symbol.begin, symbol.length);
}

bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

struct SpmTokenizer::Session {
  std::string text;  // escaped
  std::vector<Symbol> symbols;
  std::vector<QueueEntry> queue;  // a heap, the next to join on top
  std::vector<TokenId> out;
};

Result<std::unique_ptr<Tokenizer>> SpmTokenizer::Create(const gguf::File& file,
                                                        std::unique_ptr<Vocab> vocab) {
  if (!vocab->has_scores()) return MalformedKey(kScoresKey, "missing");
  std::unique_ptr<SpmTokenizer> tokenizer(new SpmTokenizer);
  TAEL_RETURN_IF_ERROR(tokenizer->Init(file, std::move(vocab)));
  TAEL_RETURN_IF_ERROR(tokenizer->ReadOptions(file));
  TAEL_RETURN_IF_ERROR(tokenizer->FindByteTokens());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

Status SpmTokenizer::ReadOptions(const gguf::File& file) {
  TAEL_ASSIGN_OR_RETURN(const auto prefix, file.GetBool(kSpacePrefixKey));
  adds_space_prefix_ = prefix.value_or(true);
  TAEL_ASSIGN_OR_RETURN(const auto architecture, file.GetString(kArchitectureKey));
  strips_after_markers_ = architecture == "phi3";
  TAEL_ASSIGN_OR_RETURN(const auto unknown, file.GetUint(kUnknownKey));
  if (!unknown) return {};
  if (*unknown >= size()) return MalformedKey(kUnknownKey, "is no token of the vocabulary");
  // Text must not be able to end a turn, whatever the file calls unknown.
  const TokenId id{static_cast<int32_t>(*unknown)};
  if (!IsEndOfGeneration(id) && id != bos()) unknown_ = static_cast<uint32_t>(*unknown);
  return {};
}

Status SpmTokenizer::FindByteTokens() {
  byte_tokens_.fill(kNoToken);
  for (uint32_t id = 0; id < size(); ++id) {
    if (vocab().Kind(id) != TokenKind::kByte) continue;
    const auto byte = ByteOfSpelling(vocab().Spelling(id));
    if (!byte) {
      return MalformedKey(kTokensKey,
                          "byte token " + std::to_string(id) + " is not <0x00>..<0xFF>");
    }
    byte_tokens_[*byte] = id;
  }
  return {};
}

bool SpmTokenizer::StripsAfter(uint32_t id) const {
  if (!strips_after_markers_) return false;
  const std::string_view spelling = vocab().Spelling(id);
  return spelling != "<unk>" && spelling != "<s>" && spelling != "<|endoftext|>";
}

std::vector<TokenId> SpmTokenizer::Encode(std::string_view text, EncodeOptions options) const {
  Session session;
  bool after_special = true;  // the start counts as one
  size_t done = 0;
  while (done < text.size()) {
    const auto match = specials().FindNext(text, done, options);
    const size_t end = match ? match->begin : text.size();
    if (end > done) {
      EncodeText(text.substr(done, end - done), after_special, session);
      after_special = false;
    }
    if (!match) break;
    session.out.push_back(TokenId{static_cast<int32_t>(match->id)});
    after_special = true;
    done = match->end;
    while (StripsAfter(match->id) && done < text.size() && IsAsciiSpace(text[done])) ++done;
  }
  return std::move(session.out);
}

void SpmTokenizer::EncodeText(std::string_view text, bool after_special, Session& session) const {
  bool prefix = adds_space_prefix_ && after_special;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, kMaxTextBytes);
    text.remove_prefix(part.size());
    session.text.clear();
    session.text.reserve(part.size() + kSpace.size());
    if (prefix) session.text += kSpace;
    prefix = false;
    for (const char c : part) {
      if (c == ' ') {
        session.text += kSpace;
      } else {
        session.text += c;
      }
    }
    MakeSymbols(session);
    Join(session);
    for (uint32_t i = 0; i != kNoSymbol; i = session.symbols[i].next) {
      Emit(TextOf(session.text, session.symbols[i]), session);
    }
  }
}

void SpmTokenizer::MakeSymbols(Session& session) const {
  const std::string_view text = session.text;
  auto& symbols = session.symbols;
  symbols.clear();
  for (uint32_t pos = 0; pos < text.size();) {
    const uint32_t length = DecodeUtf8(text.substr(pos)).length;
    const auto index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({.begin = pos,
                       .length = length,
                       .prev = index == 0 ? kNoSymbol : index - 1,
                       .next = index + 1});
    pos += length;
  }
  symbols.back().next = kNoSymbol;
}

uint32_t SpmTokenizer::FindPiece(std::string_view piece) const {
  const uint32_t id = vocab().Find(piece);
  if (id == kNoToken) return kNoToken;
  // Control, unknown, unused and byte tokens are never made from text.
  const TokenKind kind = vocab().Kind(id);
  if (kind == TokenKind::kNormal) return id;
  return kind == TokenKind::kUserDefined && !NeedsPermission(vocab(), id) ? id : kNoToken;
}

void SpmTokenizer::PushPair(uint32_t left, Session& session) const {
  if (left == kNoSymbol) return;
  const Symbol& symbol = session.symbols[left];
  if (symbol.next == kNoSymbol) return;
  const uint32_t length = symbol.length + session.symbols[symbol.next].length;
  const uint32_t id = FindPiece(std::string_view(session.text).substr(symbol.begin, length));
  if (id == kNoToken) return;
  session.queue.push_back({.score = vocab().Score(id), .left = left, .length = length});
  std::push_heap(session.queue.begin(), session.queue.end(), JoinsLater);
}

void SpmTokenizer::Join(Session& session) const {
  auto& symbols = session.symbols;
  auto& queue = session.queue;
  queue.clear();
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) PushPair(i, session);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), JoinsLater);
    const QueueEntry entry = queue.back();
    queue.pop_back();
    Symbol& symbol = symbols[entry.left];
    if (symbol.length == 0 || symbol.next == kNoSymbol) continue;
    Symbol& right = symbols[symbol.next];
    if (symbol.length + right.length != entry.length) continue;
    symbol.length = entry.length;
    symbol.next = right.next;
    if (symbol.next != kNoSymbol) symbols[symbol.next].prev = entry.left;
    right = {};
    PushPair(symbol.prev, session);
    PushPair(entry.left, session);
  }
}

void SpmTokenizer::Emit(std::string_view piece, Session& session) const {
  if (const uint32_t id = FindPiece(piece); id != kNoToken) {
    session.out.push_back(TokenId{static_cast<int32_t>(id)});
    return;
  }
  for (const char c : piece) {
    const uint32_t byte = byte_tokens_[static_cast<uint8_t>(c)];
    const uint32_t id = byte != kNoToken ? byte : unknown_;
    if (id != kNoToken) session.out.push_back(TokenId{static_cast<int32_t>(id)});
  }
}

std::string SpmTokenizer::Piece(TokenId id) const {
  const std::string_view spelling = Spelling(id);
  switch (Kind(id)) {
    case TokenKind::kControl:
    case TokenKind::kUnknown:
    case TokenKind::kUnused:
      return {};
    case TokenKind::kByte: {
      const auto byte = ByteOfSpelling(spelling);
      return byte ? std::string(1, static_cast<char>(*byte)) : std::string();
    }
    default:
      break;
  }
  std::string out;
  out.reserve(spelling.size());
  for (size_t pos = 0; pos < spelling.size();) {
    if (spelling.substr(pos).starts_with(kSpace)) {
      out += ' ';
      pos += kSpace.size();
    } else {
      out += spelling[pos++];
    }
  }
  return out;
}

uint64_t SpmTokenizer::HeapBytes() const { return sizeof *this + BaseHeapBytes(); }

}  // namespace tael::tokenizer
