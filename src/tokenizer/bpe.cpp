// See bpe.h.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/nfc.h"
#include "tokenizer/special.h"

namespace tael::tokenizer {
namespace {

constexpr const char* kPreKey = "tokenizer.ggml.pre";

constexpr uint32_t kNoSymbol = UINT32_MAX;

// Symbols are numbered in 32 bits; a longer word (over 1 GiB) is cut.
constexpr size_t kMaxWordBytes = size_t{1} << 30;

// One token of a word that is being merged. A joined symbol keeps its place; the one to its right
// leaves the chain.
struct Symbol {
  uint32_t id = kNoToken;
  uint32_t prev = kNoSymbol;
  uint32_t next = kNoSymbol;
};

// Rank above position: the lowest rank joins first, and of equal ones the leftmost.
uint64_t QueueEntry(uint32_t rank, uint32_t left) {
  return (static_cast<uint64_t>(rank) << 32) | left;
}

}  // namespace

struct BpeTokenizer::Session {
  PreTokenizer::Scratch scratch;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;  // a heap, smallest entry on top
  std::string spelling;
  std::vector<TokenId> out;
};

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::Create(const gguf::File& file,
                                                        std::unique_ptr<Vocab> vocab) {
  // Files from before the key existed were made for the default cut.
  TAEL_ASSIGN_OR_RETURN(const auto family, file.GetString(kPreKey));
  TAEL_ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::Create(family.value_or("default")));
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(pre)));
  TAEL_RETURN_IF_ERROR(tokenizer->Init(file, std::move(vocab)));
  TAEL_ASSIGN_OR_RETURN(tokenizer->merges_, MergeTable::Load(file, tokenizer->vocab()));
  tokenizer->FindByteTokens();
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

void BpeTokenizer::FindByteTokens() {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string spelling;
    AppendUtf8(CharOfByte(static_cast<uint8_t>(byte)), spelling);
    const uint32_t id = vocab().Find(spelling);
    const bool usable = id != kNoToken && !NeedsPermission(vocab(), id);
    byte_tokens_[byte] = usable ? id : kNoToken;
  }
  Session session;
  session.scratch = pre_.MakeScratch();
  EncodeText(kReplacementCharacter, session);
  if (Decode(session.out) == kReplacementCharacter) replacement_ = std::move(session.out);
}

std::vector<TokenId> BpeTokenizer::Encode(std::string_view text, EncodeOptions options) const {
  Session session;
  session.scratch = pre_.MakeScratch();
  size_t done = 0;
  while (done < text.size()) {
    const auto match = specials().FindNext(text, done, options);
    EncodeText(text.substr(done, (match ? match->begin : text.size()) - done), session);
    if (!match) break;
    session.out.push_back(TokenId{static_cast<int32_t>(match->id)});
    done = match->end;
  }
  return std::move(session.out);
}

void BpeTokenizer::EncodeText(std::string_view text, Session& session) const {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    EncodeValid(text.substr(0, valid), session);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const size_t invalid = DecodeUtf8(text).length;
    for (const char byte : text.substr(0, invalid))
      EncodeInvalidByte(static_cast<uint8_t>(byte), session);
    text.remove_prefix(invalid);
  }
}

void BpeTokenizer::EncodeValid(std::string_view text, Session& session) const {
  std::string normalized;
  if (pre_.normalizes() && !IsTriviallyNfc(text)) {
    normalized = ToNfc(text);
    text = normalized;
  }
  pre_.Split(text, session.scratch, [&](std::string_view word) {
    for (; word.size() > kMaxWordBytes; word.remove_prefix(kMaxWordBytes)) {
      EncodeWord(word.substr(0, kMaxWordBytes), session);
    }
    EncodeWord(word, session);
  });
}

void BpeTokenizer::EncodeInvalidByte(uint8_t byte, Session& session) const {
  if (const uint32_t id = byte_tokens_[byte]; id != kNoToken) {
    session.out.push_back(TokenId{static_cast<int32_t>(id)});
  } else {
    // Many vocabularies lack the bytes that UTF-8 never uses. The file's unknown token is no
    // stand-in: it is often <|endoftext|>, which must not come from text.
    session.out.insert(session.out.end(), replacement_.begin(), replacement_.end());
  }
}

uint32_t BpeTokenizer::FindWord(std::string_view word, Session& session) const {
  if (word.size() > vocab().max_token_bytes()) return kNoToken;
  session.spelling.clear();
  for (const char byte : word) AppendUtf8(CharOfByte(static_cast<uint8_t>(byte)), session.spelling);
  const uint32_t id = vocab().Find(session.spelling);
  return id != kNoToken && vocab().Kind(id) == TokenKind::kNormal ? id : kNoToken;
}

void BpeTokenizer::EncodeWord(std::string_view word, Session& session) const {
  if (pre_.ignores_merges()) {
    if (const uint32_t id = FindWord(word, session); id != kNoToken) {
      session.out.push_back(TokenId{static_cast<int32_t>(id)});
      return;
    }
  }
  const auto count = static_cast<uint32_t>(word.size());
  session.symbols.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    session.symbols[i] = {.id = byte_tokens_[static_cast<uint8_t>(word[i])],
                          .prev = i == 0 ? kNoSymbol : i - 1,
                          .next = i + 1 == count ? kNoSymbol : i + 1};
  }
  Join(session);
  for (uint32_t i = 0; i != kNoSymbol; i = session.symbols[i].next) {
    const uint32_t id = session.symbols[i].id;
    // A byte of a valid character that has no token is dropped, as the families do it (SmolLM2 has
    // none for U+0004, for one).
    if (id != kNoToken) session.out.push_back(TokenId{static_cast<int32_t>(id)});
  }
}

void BpeTokenizer::PushPair(uint32_t left, Session& session) const {
  if (left == kNoSymbol) return;
  const Symbol& symbol = session.symbols[left];
  if (symbol.next == kNoSymbol) return;
  const auto merge = merges_.Find(symbol.id, session.symbols[symbol.next].id);
  if (!merge) return;
  session.queue.push_back(QueueEntry(merge->rank, left));
  std::push_heap(session.queue.begin(), session.queue.end(), std::greater<>());
}

void BpeTokenizer::Join(Session& session) const {
  auto& symbols = session.symbols;
  auto& queue = session.queue;
  queue.clear();
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) PushPair(i, session);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t entry = queue.back();
    queue.pop_back();
    const auto left = static_cast<uint32_t>(entry);
    Symbol& symbol = symbols[left];
    if (symbol.next == kNoSymbol) continue;
    const uint32_t right = symbol.next;
    // An entry is out of date when its pair has changed since; a rank belongs to one pair only.
    const auto merge = merges_.Find(symbol.id, symbols[right].id);
    if (!merge || QueueEntry(merge->rank, left) != entry) continue;
    symbol.id = merge->merged;
    symbol.next = symbols[right].next;
    if (symbol.next != kNoSymbol) symbols[symbol.next].prev = left;
    symbols[right] = {};  // leaves the chain; entries that name it find no pair
    PushPair(symbol.prev, session);
    PushPair(left, session);
  }
}

std::string BpeTokenizer::Piece(TokenId id) const {
  const std::string_view spelling = Spelling(id);
  switch (Kind(id)) {
    case TokenKind::kControl:
    case TokenKind::kUnknown:
    case TokenKind::kUnused:
      return {};
    case TokenKind::kUserDefined:
      return std::string(spelling);  // kept in plain text by the files' converters
    default:
      return DecodeByteSpelling(spelling);
  }
}

uint64_t BpeTokenizer::HeapBytes() const {
  return sizeof *this + BaseHeapBytes() + pre_.HeapBytes() + merges_.HeapBytes() +
         replacement_.capacity() * sizeof(TokenId);
}

}  // namespace tael::tokenizer
