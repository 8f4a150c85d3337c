/* table.h - building one table of an admin answer: cell by cell, or, where a row has many, by their
 * columns. */
#ifndef COMMD_TABLE_H
#define COMMD_TABLE_H

#include "shm/proto/msg.h"

struct table {
    struct msg_table t; /* owned */
    size_t ncells, room, bytes;
    int error; /* the first failure sticks: -ENOMEM, -E2BIG */
};

struct table_column {
    const char *key, *title;
    enum msg_cell_type type;
};

void table_init(struct table *table, const char *name, const struct table_column *columns,
                unsigned ncolumns);
void table_fini(struct table *table);
/* May they go out in one answer? 0; the first failure of one of them; -E2BIG: together they are
 * more than a frame holds, though each is not. */
int tables_error(const struct table *tables, unsigned n);
/* The next cell, row by row. */
void table_text(struct table *table, const char *text);
void table_format(struct table *table, const char *fmt, ...) _printf_(2, 3);
void table_number(struct table *table, uint64_t number);
void table_number_if(struct table *table, bool known, uint64_t number); /* else nothing */
void table_id(struct table *table, uint64_t id); /* of a group or an engine; 0: nothing */
void table_bool(struct table *table, bool value);
/* Takes out the rows of which @out[row] is true; the table is complete. */
void table_drop(struct table *table, const bool *out);
/* Begins a row of empty cells, which table_set_*() fill; @column: its place in table_init(). */
void table_row(struct table *table);
void table_set_text(struct table *table, unsigned column, const char *text);
void table_set_format(struct table *table, unsigned column, const char *fmt, ...) _printf_(3, 4);
void table_set_number(struct table *table, unsigned column, uint64_t number);
void table_set_bool(struct table *table, unsigned column, bool value);

#endif
