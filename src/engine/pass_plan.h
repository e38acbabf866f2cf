// Chooses what the next pass computes: first one token of every answer that is being written, then
// as many of the prompts' as a pass has room for, those that are due first first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/answer_writer.h"
#include "engine/batch.h"
#include "engine/job.h"

namespace tael::engine {

class PassPlan {
 public:
  struct Part {
    Choice* choice = nullptr;
    AnswerWriter::Feed feed;
    bool decodes = false;
  };

  // `ready` are the choices that may compute, those that are due first first; at most `max_tokens`
  // tokens in all. Guesses are made where one answer is alone and `draft` allows it: beside others
  // their rows are worth more.
  void Make(std::span<Choice* const> ready, uint32_t max_tokens, bool draft);

  std::span<const Part> parts() const { return parts_; }
  std::span<const BatchItem> items() const { return items_; }  // of the parts, in their order
  bool has_draft() const { return has_draft_; }
  // Rows of KV that the sequences may have to get for it, at most.
  uint64_t CountNewRows() const;

 private:
  void Add(Choice& choice, uint32_t most, bool draft);

  std::vector<Part> parts_;
  std::vector<BatchItem> items_;
  bool has_draft_ = false;
};

}  // namespace tael::engine
