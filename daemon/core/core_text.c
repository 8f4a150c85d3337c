/* core_text.c - bounded text and hashes for the core, which may not use stdio.
 *
 * Only what the core's texts need: %s %u %d %llu and %%. A text that does not fit is cut, never
 * an error: texts are for people. Control characters in it become '?', because parts come from
 * clients and peers and end in terminals and logs. */
#include <stdarg.h>

#include "daemon/core/core_internal.h"
#include "shm/util/hash.h"

static void put(struct text *text, char c)
{
    assert(text->len < text->cap);
    if (text->len + 1 == text->cap)
        return;
    text->buf[text->len++] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
    text->buf[text->len] = 0;
}

static void put_string(struct text *text, const char *s)
{
    for (s = s ? s : "?"; *s; s++)
        put(text, *s);
}

static void put_number(struct text *text, unsigned long long value)
{
    char digits[20];
    unsigned n = 0;

    do
        digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n)
        put(text, digits[--n]);
}

void text_vadd(struct text *text, const char *format, __builtin_va_list args)
{
    for (; *format; format++) {
        if (*format != '%') {
            put(text, *format);
            continue;
        }
        switch (*++format) {
        case 's':
            put_string(text, va_arg(args, const char *));
            break;
        case 'u':
            put_number(text, va_arg(args, unsigned));
            break;
        case 'd': {
            int value = va_arg(args, int);

            if (value < 0)
                put(text, '-');
            put_number(text, value < 0 ? -(unsigned)value : (unsigned)value);
            break;
        }
        case 'l': /* the only l is %llu */
            format += 2;
            put_number(text, va_arg(args, unsigned long long));
            break;
        case '%':
            put(text, '%');
            break;
        default: /* our own bug, and no input can reach it */
            abort();
        }
    }
}

void text_add(struct text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    text_vadd(text, format, args);
    va_end(args);
}

void text_format(char *buf, size_t cap, const char *format, ...)
{
    struct text text = {buf, cap, 0};
    va_list args;

    assert(cap);
    buf[0] = 0;
    va_start(args, format);
    text_vadd(&text, format, args);
    va_end(args);
}

void text_add_ms(struct text *text, uint64_t ms)
{
    if (ms % 1000)
        text_add(text, "%llu ms", (unsigned long long)ms);
    else
        text_add(text, "%llu s", (unsigned long long)(ms / 1000));
}

const char *text_quote(char buf[TEXT_QUOTED], const char *s)
{
    size_t n = 0, i;

    buf[n++] = '"';
    for (i = 0; s[i] && i < TEXT_QUOTE_MAX; i++) {
        if (s[i] == '"' || s[i] == '\\')
            buf[n++] = '\\';
        buf[n++] = s[i];
    }
    buf[n++] = '"';
    assert(n + 4 <= TEXT_QUOTED);
    for (unsigned dots = s[i] ? 3 : 0; dots; dots--)
        buf[n++] = '.';
    buf[n] = 0;
    return buf;
}

void text_copy(char *dst, size_t cap, const char *src)
{
    size_t n = src ? strnlen(src, cap - 1) : 0;

    assert(cap);
    if (n)
        memcpy(dst, src, n);
    dst[n] = 0;
}

/* splitmix64: a step of its counter, then its finalizer, a bijection */
uint64_t core_mix(uint64_t x)
{
    x += CORE_MIX_STEP;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Mixed: names differ in their last character most of the time. */
uint64_t text_hash(uint64_t seed, const char *s)
{
    return core_mix(hash_text(HASH_BEGIN ^ core_mix(seed), s));
}
