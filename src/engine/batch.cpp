#include "engine/batch.h"

#include <string>

#include "base/check.h"

namespace tael::engine {

// A batch on its way through the engine, with the access to sessions that nobody else needs.
class BatchPass {
 public:
  BatchPass(Engine& engine, std::span<const BatchItem> items) : engine_(engine), items_(items) {}

  Status Run(BatchSink sink, BatchStop stop) {
    TAEL_RETURN_IF_ERROR(Check());
    TAEL_RETURN_IF_ERROR(MakeRoom());
    std::vector<exec::SequenceChunk>& chunks = engine_.chunks_;
    chunks.clear();
    for (const BatchItem& item : items_) {
      chunks.push_back({&item.session->sequence_, item.tokens, item.num_logits});
    }
    if (!Compute(chunks, sink, stop)) {
      GiveRoomBack(items_.size());
      return Error{ErrorCode::kCancelled, "cancelled", ""};
    }
    if (engine_.model().mapping().damaged()) {
      GiveRoomBack(items_.size());
      return FileWasCut();
    }
    Commit();
    return {};
  }

 private:
  bool Compute(std::span<const exec::SequenceChunk> chunks, BatchSink sink, BatchStop stop) {
    engine_.weight_room_->BeforePass();
    const bool done = engine_.forward_->Run(chunks, sink, stop);
    engine_.weight_room_->AfterPass();
    return done;
  }

  Status Check() const {
    if (items_.empty()) return Error{ErrorCode::kInvalidArgument, "a batch without items", ""};
    size_t total = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      TAEL_RETURN_IF_ERROR(CheckItem(items_[i]));
      total += items_[i].tokens.size();
      for (size_t j = 0; j < i; ++j) {
        if (items_[j].session != items_[i].session) continue;
        return Error{ErrorCode::kInvalidArgument, "a session is in the batch twice",
                     "items " + std::to_string(j) + " and " + std::to_string(i)};
      }
    }
    if (total <= engine_.max_batch_tokens()) return {};
    return Error{ErrorCode::kInvalidArgument, "more tokens than one pass takes",
                 std::to_string(total) + ", a pass takes " +
                     std::to_string(engine_.max_batch_tokens()) + ": give the rest to the next"};
  }

  Status CheckItem(const BatchItem& item) const {
    TAEL_CHECK(item.session != nullptr && item.session->engine_ == &engine_);
    TAEL_RETURN_IF_ERROR(CheckTokens(engine_, item.tokens));
    if (item.tokens.size() > item.session->sequence_.MostAtOnce()) {
      return Error{ErrorCode::kInvalidArgument, "more tokens than the session takes at once",
                   std::to_string(item.tokens.size()) +
                       ", up to its next choice of old tokens, or the end of its prompt, " +
                       std::to_string(item.session->sequence_.MostAtOnce()) +
                       ": give the rest to the next"};
    }
    return CheckRemaining(*item.session, item.tokens.size());
  }

  // Nothing has been computed when this fails, so that the first ones' room is all there is to
  // undo.
  Status MakeRoom() {
    for (size_t i = 0; i < items_.size(); ++i) {
      const auto count = static_cast<uint32_t>(items_[i].tokens.size());
      Status status = items_[i].session->sequence_.Extend(count);
      if (status) continue;
      GiveRoomBack(i);
      return status;
    }
    return {};
  }

  void GiveRoomBack(size_t num_items) {
    for (size_t i = num_items; i-- > 0;) {
      kv::Sequence& sequence = items_[i].session->sequence_;
      sequence.Truncate(sequence.length());
    }
  }

  void Commit() {
    for (const BatchItem& item : items_) {
      kv::Sequence& sequence = item.session->sequence_;
      const auto count = static_cast<uint32_t>(item.tokens.size());
      const uint32_t kept = item.keep != nullptr ? *item.keep : count;
      TAEL_CHECK(kept <= count &&
                 (kept == count || kept == 0 || !(sequence.has_tail() || sequence.observes())));
      sequence.Commit(kept);
      if (kept < count) sequence.Truncate(sequence.length());
    }
  }

  Error FileWasCut() const {
    return Error{
        ErrorCode::kIo, "the model file was cut short while it was in use",
        "\"" + engine_.model().mapping().path() + "\"; put the whole file back and load it again"};
  }

  Engine& engine_;
  const std::span<const BatchItem> items_;
};

Status FeedBatch(Engine& engine, std::span<const BatchItem> items, BatchSink sink) {
  return FeedBatch(engine, items, sink, [] { return false; });
}

Status FeedBatch(Engine& engine, std::span<const BatchItem> items, BatchSink sink, BatchStop stop) {
  return BatchPass(engine, items).Run(sink, stop);
}

}  // namespace tael::engine
