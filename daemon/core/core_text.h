/* core_text.h - bounded text without stdio, and hashes of text. */
#ifndef COMMD_CORE_TEXT_H
#define COMMD_CORE_TEXT_H

#include "shm/util/base.h"

struct text {
    char *buf;
    size_t cap, len; /* cap > 0; always NUL-terminated */
};
/* %s %u %d %llu only; control characters become '?', what does not fit is cut. */
void text_add(struct text *text, const char *format, ...) _printf_(2, 3);
void text_vadd(struct text *text, const char *format, __builtin_va_list args);
void text_format(char *buf, size_t cap, const char *format, ...) _printf_(3, 4);
/* "5 s", "1500 ms" */
void text_add_ms(struct text *text, uint64_t ms);

/* @s in quotes and cut, so that what a client wrote cannot look like ours in the log. Returns @buf.
 */
enum { TEXT_QUOTE_MAX = 200, TEXT_QUOTED = 2 * TEXT_QUOTE_MAX + 8 };
const char *text_quote(char buf[TEXT_QUOTED], const char *s);
/* Copies and cuts; @src may be NULL. */
void text_copy(char *dst, size_t cap, const char *src);
uint64_t text_hash(uint64_t seed, const char *s);

#endif
