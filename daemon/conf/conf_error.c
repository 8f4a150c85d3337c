/* conf_error.c - the list of what is wrong with a configuration.
 *
 * The reader adds errors as it meets them; the rules about several keys add theirs later. The text
 * has a line for each error, sorted by position, so that a person can go through the file once. A
 * hostile file cannot make the list grow: it ends at CONF_MAX_ERRORS. The texts that are added must
 * be printable (conf_quote()). */
#include "daemon/conf/conf_keys.h"

#include <stdarg.h>
#include <stdio.h>

void conf_errors_add(struct conf_errors *errors, struct conf_pos pos, const char *fmt, ...)
{
    struct conf_error *e = &errors->v[errors->n];
    va_list args;

    if (errors->n == CONF_MAX_ERRORS) {
        errors->more = true;
        return;
    }
    *e = (struct conf_error){.pos = pos, .seq = errors->n};
    va_start(args, fmt);
    if (vasprintf(&e->text, fmt, args) < 0)
        errors->oom = true;
    else
        errors->n++;
    va_end(args);
}

static int error_cmp(const void *va, const void *vb)
{
    const struct conf_error *a = va, *b = vb;

    if (a->pos.line != b->pos.line)
        return a->pos.line < b->pos.line ? -1 : 1;
    if (a->pos.col != b->pos.col)
        return a->pos.col < b->pos.col ? -1 : 1;
    return a->seq < b->seq ? -1 : 1; /* qsort(3) is not stable */
}

char *conf_errors_text(struct conf_errors *errors, const char *file)
{
    char *text = NULL;
    size_t len;
    FILE *f;
    bool bad;

    if (errors->oom)
        return NULL;
    f = open_memstream(&text, &len);
    if (!f)
        return NULL;
    qsort(errors->v, errors->n, sizeof(errors->v[0]), error_cmp);
    for (unsigned i = 0; i < errors->n; i++) {
        const struct conf_error *e = &errors->v[i];

        fprintf(f, "%s%s:", i ? "\n" : "", file);
        if (e->pos.line)
            fprintf(f, "%u:%u:", e->pos.line, e->pos.col);
        fprintf(f, " %s", e->text);
    }
    if (errors->more)
        fprintf(f, "\n%s: more errors follow; only the first %d are shown", file, CONF_MAX_ERRORS);
    bad = ferror(f);
    if (fclose(f) != 0 || bad) { /* where memory that runs out shows */
        free(text);
        return NULL;
    }
    return text;
}

void conf_errors_fini(struct conf_errors *errors)
{
    for (unsigned i = 0; i < errors->n; i++)
        free(errors->v[i].text);
    errors->n = 0;
}

int fail_with(int r, char **ret_error, const char *fmt, ...)
{
    va_list args;
    int n;

    va_start(args, fmt);
    n = vasprintf(ret_error, fmt, args);
    va_end(args);
    if (n >= 0)
        return r;
    *ret_error = NULL;
    return -ENOMEM;
}
