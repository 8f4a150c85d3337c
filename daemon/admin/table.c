/* table.c - tables for commctl. All cells are text; a number or a bool is text that looks like
 * one. An error sticks until the table is asked for, so that the code that fills it reads like
 * the table. */
#include "daemon/admin/table.h"

#include "daemon/process/log.h"
#include "shm/proto/codec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { TABLE_MAX_BYTES = CODEC_MAX_FRAME - (64 << 10) }; /* columns and headers fit, too */

void table_init(struct table *table, const char *name, const struct table_column *columns,
                unsigned ncolumns)
{
    *table = (struct table){0};
    snprintf(table->t.name, sizeof(table->t.name), "%s", name);
    table->t.columns = calloc(ncolumns, sizeof(*table->t.columns));
    if (!table->t.columns) {
        table->error = -ENOMEM;
        return;
    }
    table->t.ncolumns = ncolumns;
    for (unsigned i = 0; i < ncolumns; i++) {
        struct msg_column *column = &table->t.columns[i];

        snprintf(column->key, sizeof(column->key), "%s", columns[i].key);
        snprintf(column->title, sizeof(column->title), "%s", columns[i].title);
        column->type = columns[i].type;
    }
}

void table_fini(struct table *table)
{
    for (size_t i = 0; i < table->ncells; i++)
        free(table->t.cells[i]);
    free(table->t.cells);
    free(table->t.columns);
    *table = (struct table){0};
}

int tables_error(const struct table *tables, unsigned n)
{
    size_t ncells = 0, bytes = 0;

    for (unsigned i = 0; i < n; i++) {
        if (tables[i].error)
            return tables[i].error;
        ncells += tables[i].ncells;
        bytes += tables[i].bytes;
    }
    return ncells > MSG_MAX_CELLS || bytes > TABLE_MAX_BYTES ? -E2BIG : 0;
}

/* Takes @text, which is NULL when there was no memory for it. */
static void table_take(struct table *table, char *text)
{
    if (!text && !table->error)
        table->error = -ENOMEM;
    if (text)
        log_clean(text); /* a client may have written it, and a terminal shows it */
    if (table->ncells == table->room && !table->error) {
        size_t room = table->room ? 2 * table->room : 64;
        char **cells = realloc(table->t.cells, room * sizeof(*cells));

        if (cells) {
            table->t.cells = cells;
            table->room = room;
        } else {
            table->error = -ENOMEM;
        }
    }
    if ((table->ncells == MSG_MAX_CELLS || table->bytes > TABLE_MAX_BYTES) && !table->error)
        table->error = -E2BIG;
    if (table->error) {
        free(text);
        return;
    }
    table->bytes += strlen(text) + 4; /* and its length, on the wire */
    table->t.cells[table->ncells++] = text;
    table->t.nrows = (uint32_t)(table->ncells / table->t.ncolumns);
}

void table_text(struct table *table, const char *text)
{
    table_take(table, strdup(text ? text : ""));
}

void table_format(struct table *table, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    table_take(table, text);
}

void table_number(struct table *table, uint64_t number)
{
    table_format(table, "%" PRIu64, number);
}

void table_number_if(struct table *table, bool known, uint64_t number)
{
    if (known)
        table_number(table, number);
    else
        table_text(table, "");
}

void table_bool(struct table *table, bool value)
{
    table_text(table, value ? "true" : "false");
}

void table_drop(struct table *table, const bool *out)
{
    unsigned ncolumns = table->t.ncolumns;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < table->t.nrows; i++) {
        char **row = table->t.cells + (size_t)i * ncolumns;

        for (unsigned k = 0; out[i] && k < ncolumns; k++) {
            table->bytes -= strlen(row[k]);
            free(row[k]);
        }
        if (!out[i])
            memmove(table->t.cells + (size_t)kept++ * ncolumns, row, ncolumns * sizeof(*row));
    }
    table->t.nrows = kept;
    table->ncells = (size_t)kept * ncolumns;
}
