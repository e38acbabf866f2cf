// `tael tokenize`: text to ids and back. Maps the file, but reads nothing of its weights.
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/input.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "gguf/file.h"
#include "mem/mapping.h"
#include "tokenizer/tokenizer.h"

namespace tael::cli {
namespace {

Status PrintLine(std::string text) {
  text += '\n';
  return PrintText(text);
}

Status Decode(const TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer) {
  std::string text;
  for (const std::string& id : options.ids) text += id + " ";
  if (options.ids.empty()) {
    TAEL_ASSIGN_OR_RETURN(text, ReadText(options.text));
  }
  TAEL_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ParseIds(text, "token ids"));
  TAEL_RETURN_IF_ERROR(CheckIds(tokenizer, ids));
  std::string decoded = tokenizer.Decode(ids);
  if (options.output.json) return PrintJson({{"text", std::move(decoded)}});
  return PrintLine(std::move(decoded));
}

Status Encode(const TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer) {
  if (!options.ids.empty()) {
    return Error{ErrorCode::kInvalidArgument, "ids without --decode",
                 "add --decode, or give text with -p"};
  }
  TAEL_ASSIGN_OR_RETURN(const std::string text, ReadText(options.text));
  std::vector<TokenId> ids = tokenizer.Encode(text, {.parse_control = !options.plain});
  if (options.bos) {
    if (!tokenizer.IsValid(tokenizer.bos())) {
      return Error{ErrorCode::kInvalidArgument, "--bos", "this vocabulary has no such token"};
    }
    ids.insert(ids.begin(), tokenizer.bos());
  }
  if (options.output.json) return PrintJson({{"tokens", IdsToJson(ids)}});
  return PrintLine(IdsToJson(ids).dump());  // fit for --prompt-tokens and --decode
}

}  // namespace

Result<int> Execute(const TokenizeOptions& options) {
  TAEL_ASSIGN_OR_RETURN(const auto mapping, mem::FileMapping::Open(options.model_path));
  TAEL_ASSIGN_OR_RETURN(const auto file, gguf::File::Parse(mapping.bytes()));
  TAEL_ASSIGN_OR_RETURN(const auto tokenizer, tokenizer::Tokenizer::Create(file));
  TAEL_RETURN_IF_ERROR(options.decode ? Decode(options, *tokenizer) : Encode(options, *tokenizer));
  return kExitOk;
}

}  // namespace tael::cli
