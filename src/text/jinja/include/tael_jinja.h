/* The C ABI of the Rust crate beside this header: one compiled chat template, rendered to text.
 *
 * Nothing here throws or aborts on input: a panic of the Rust side is caught and reported as
 * TAEL_JINJA_INTERNAL. A handle may be used from several threads at a time; freeing it may not
 * race with its use. */
#ifndef TAEL_TEXT_JINJA_H_
#define TAEL_TEXT_JINJA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TaelJinja TaelJinja;

enum {
  TAEL_JINJA_OK = 0,
  TAEL_JINJA_SYNTAX = 1,      /* the template does not parse; `line` is set */
  TAEL_JINJA_RAISED = 2,      /* the template called raise_exception; the text is its message */
  TAEL_JINJA_FAILED = 3,      /* the template parses but cannot be rendered; `line` may be set */
  TAEL_JINJA_OUT_OF_FUEL = 4, /* the render did more work than it was given fuel for */
  TAEL_JINJA_BAD_CONTEXT = 5, /* the context is no JSON object */
  TAEL_JINJA_INTERNAL = 6,    /* a bug on the Rust side, or no memory for a stack */
  TAEL_JINJA_TOO_LARGE = 7    /* the template is longer than any that is in use */
};

/* Text owned by the Rust side, not NUL-terminated; release with tael_jinja_text_free. */
typedef struct {
  char* data;
  size_t size;
  size_t capacity;
  uint32_t line; /* 1-based line of the template that an error is about, 0 if unknown */
} TaelJinjaText;

/* Compiles a template. On success *handle is set; otherwise `text` says why. Requires UTF-8. */
int32_t tael_jinja_create(const char* source, size_t size, TaelJinja** handle, TaelJinjaText* text);

/* Renders with the variables of a JSON object. `text` becomes the output, or the error message.
 * `fuel` bounds the work: about one unit per instruction and per 64 bytes made. */
int32_t tael_jinja_render(const TaelJinja* handle, const char* context, size_t size, uint64_t fuel,
                          TaelJinjaText* text);

void tael_jinja_free(TaelJinja* handle);
void tael_jinja_text_free(TaelJinjaText* text);

#ifdef __cplusplus
}
#endif

#endif
