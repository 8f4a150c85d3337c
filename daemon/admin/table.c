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

/* Adds @n empty cells; false: an error has stuck. */
static bool table_grow(struct table *table, size_t n)
{
    assert(table->t.ncolumns || table->error); /* table_init() comes first */
    if (table->ncells + n > table->room && !table->error) {
        size_t room = MAX(2 * table->room, table->ncells + n + 64);
        char **cells = realloc(table->t.cells, room * sizeof(*cells));

        if (cells) {
            table->t.cells = cells;
            table->room = room;
        } else {
            table->error = -ENOMEM;
        }
    }
    if ((table->ncells + n > MSG_MAX_CELLS || table->bytes > TABLE_MAX_BYTES) && !table->error)
        table->error = -E2BIG;
    if (table->error)
        return false;
    memset(table->t.cells + table->ncells, 0, n * sizeof(*table->t.cells));
    table->bytes += 4 * n; /* their lengths, on the wire */
    table->ncells += n;
    table->t.nrows = (uint32_t)(table->ncells / table->t.ncolumns);
    return true;
}

/* Takes @text for the empty cell @cell. @text NULL: there was no memory for it. */
static void table_take(struct table *table, size_t cell, char *text)
{
    if (!text && !table->error)
        table->error = -ENOMEM;
    if (table->error) {
        free(text);
        return;
    }
    assert(cell < table->ncells && !table->t.cells[cell]);
    log_clean(text); /* a client may have written it, and a terminal shows it */
    table->bytes += strlen(text);
    table->t.cells[cell] = text;
}

static char *text_of(const char *fmt, va_list ap)
{
    char *text;

    return vasprintf(&text, fmt, ap) < 0 ? NULL : text;
}

void table_text(struct table *table, const char *text)
{
    if (table_grow(table, 1))
        table_take(table, table->ncells - 1, strdup(text ? text : ""));
}

void table_format(struct table *table, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (table_grow(table, 1))
        table_take(table, table->ncells - 1, text_of(fmt, ap));
    va_end(ap);
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

void table_id(struct table *table, uint64_t id)
{
    if (id)
        table_format(table, "%016" PRIx64, id);
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

    assert(table->ncells == (size_t)table->t.nrows * ncolumns);
    for (uint32_t i = 0; i < table->t.nrows; i++) {
        char **row = table->t.cells + (size_t)i * ncolumns;

        for (unsigned k = 0; out[i] && k < ncolumns; k++) {
            table->bytes -= 4 + (row[k] ? strlen(row[k]) : 0);
            free(row[k]);
        }
        if (!out[i])
            memmove(table->t.cells + (size_t)kept++ * ncolumns, row, ncolumns * sizeof(*row));
    }
    table->t.nrows = kept;
    table->ncells = (size_t)kept * ncolumns;
}

void table_row(struct table *table)
{
    table_grow(table, table->t.ncolumns);
}

void table_set_format(struct table *table, unsigned column, const char *fmt, ...)
{
    va_list ap;

    assert(table->error || (column < table->t.ncolumns && table->ncells >= table->t.ncolumns));
    va_start(ap, fmt);
    if (!table->error)
        table_take(table, table->ncells - table->t.ncolumns + column, text_of(fmt, ap));
    va_end(ap);
}

void table_set_text(struct table *table, unsigned column, const char *text)
{
    if (*text)
        table_set_format(table, column, "%s", text);
}

void table_set_number(struct table *table, unsigned column, uint64_t number)
{
    table_set_format(table, column, "%" PRIu64, number);
}

void table_set_bool(struct table *table, unsigned column, bool value)
{
    table_set_text(table, column, value ? "true" : "false");
}
