/* conf_hint.c - what to say about a key that does not exist. Three mistakes are common: a slip of
 * the fingers, a key under the wrong section, and "section.key" on one line as the messages and
 * `commctl show config` print it. Pure. The name comes from the file and is not trusted, so it is
 * compared here and not printed. */
#include "daemon/conf/conf_keys.h"

#include <stdio.h>

enum { NAME_MAX_COMPARED = 32 };

/* Optimal string alignment distance: insert, delete, replace, swap neighbours. */
static unsigned distance(const char *a, const char *b)
{
    unsigned rows[3][NAME_MAX_COMPARED + 1];
    size_t len_a = strlen(a), len_b = strlen(b);

    if (len_a > NAME_MAX_COMPARED || len_b > NAME_MAX_COMPARED)
        return NAME_MAX_COMPARED;
    for (size_t k = 0; k <= len_b; k++)
        rows[0][k] = (unsigned)k;
    for (size_t i = 1; i <= len_a; i++) {
        unsigned *row = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];

        row[0] = (unsigned)i;
        for (size_t k = 1; k <= len_b; k++) {
            unsigned best = up[k - 1] + (a[i - 1] != b[k - 1]);

            best = MIN(best, up[k] + 1);
            best = MIN(best, row[k - 1] + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                best = MIN(best, up2[k - 2] + 1);
            row[k] = best;
        }
    }
    return rows[len_a % 3][len_b];
}

/* The i-th name of the list that conf_key_names() prints, NULL past the last. */
static const char *name_at(const struct conf_key *keys, unsigned nkeys, unsigned i)
{
    if (keys)
        return i < nkeys ? keys[i].name : NULL;
    for (unsigned k = 0; k < conf_nkeys; k++)
        if (k == 0 || strcmp(conf_keys[k].section, conf_keys[k - 1].section))
            if (i-- == 0)
                return conf_keys[k].section;
    return NULL;
}

void conf_key_names(const struct conf_key *keys, unsigned nkeys, char *buf, size_t len)
{
    const char *name;
    size_t at = 0;

    for (unsigned i = 0; (name = name_at(keys, nkeys, i)) && at < len; i++)
        at += (size_t)snprintf(buf + at, len - at, "%s%s", i ? ", " : "", name);
}

/* The name of @key, or the one that it had before. */
static bool is_name_of(const struct conf_key *key, const char *name)
{
    const char *old = conf_key_old_name(key);

    return !strcmp(key->name, name) || (old && !strcmp(old, name));
}

void conf_key_hint(const char *section, const char *name, const struct conf_key *keys,
                   unsigned nkeys, char *buf, size_t len)
{
    unsigned best = 1 + (unsigned)strlen(name) / 4; /* one slip in four letters */
    const char *near = NULL, *candidate;

    buf[0] = '\0';
    for (unsigned i = 0; (candidate = name_at(keys, nkeys, i)); i++) {
        unsigned d = distance(name, candidate);

        if (d < best || (d == best && !near)) {
            best = d;
            near = candidate;
        }
    }
    if (near) {
        snprintf(buf, len, " (did you mean \"%s\"?)", near);
        return;
    }
    for (unsigned i = 0; i < conf_nkeys; i++) {
        const struct conf_key *key = &conf_keys[i];
        size_t n = strlen(key->section);

        if (is_name_of(key, name) && strcmp(key->section, section)) {
            snprintf(buf, len, " (it belongs under \"%s:\")", key->section);
            return;
        }
        if (!strncmp(name, key->section, n) && name[n] == '.' && is_name_of(key, name + n + 1)) {
            snprintf(buf, len, " (write \"%s:\" and, indented on a line below it, \"%s:\")",
                     key->section, key->name);
            return;
        }
    }
}
