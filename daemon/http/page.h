/* page.h - page.html, which the build writes as an array into page.c. */
#ifndef COMMD_PAGE_H
#define COMMD_PAGE_H

#include <stddef.h>

extern const char page_html[];
extern const size_t page_html_len;

#endif
