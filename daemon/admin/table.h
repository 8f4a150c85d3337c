/* table.h - building one table of an answer to commctl: cell by cell, or, in rows of many cells, by
 * column. */
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
/* May the tables go out in one answer? 0: yes. Else the first error of a table, or -E2BIG: together
 * they do not fit into a frame. */
int tables_error(const struct table *tables, unsigned n);
/* Each of these adds the next cell, row by row. */
void table_text(struct table *table, const char *text);
void table_format(struct table *table, const char *fmt, ...) _printf_(2, 3);
void table_number(struct table *table, uint64_t number);
void table_number_if(struct table *table, bool known, uint64_t number); /* else "" */
void table_id(struct table *table, uint64_t id); /* of a group or an engine; "" for 0 */
void table_bool(struct table *table, bool value);
/* Takes each row out for which @out[row] is true. The table is complete. */
void table_drop(struct table *table, const bool *out);
/* Begins a row of empty cells, which table_set_*() fill. @column: index in the list of
 * table_init().
 */
void table_row(struct table *table);
void table_set_text(struct table *table, unsigned column, const char *text);
void table_set_format(struct table *table, unsigned column, const char *fmt, ...) _printf_(3, 4);
void table_set_number(struct table *table, unsigned column, uint64_t number);
void table_set_bool(struct table *table, unsigned column, bool value);

#endif
