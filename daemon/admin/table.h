/* table.h - building one table of an answer to commctl. A table whose rows are made of views is
 * written as a list with one row for each column, COLUMNS(C) for example:
 *
 *   C(size, "SIZE [bytes]", number, view.size)
 *
 * is key, heading, kind of the cells, and value. table_begin(t, "name", COLUMNS) makes the columns
 * and TABLE_ADD(COLUMNS) adds a row, whose values are taken from the variables around it, to the
 * table t. The kinds are the functions table_KIND() below. Tables of another form are made cell by
 * cell, or, in rows of many cells, by column. */
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
#define table_begin(table_, name_, LIST_)                                                          \
    ({                                                                                             \
        static const struct table_column columns_[] = {LIST_(TABLE_COLUMN)};                       \
        table_init(table_, name_, columns_, ARRAY_LEN(columns_));                                  \
    })
#define TABLE_ADD(LIST_)                       LIST_(TABLE_CELL)
#define TABLE_COLUMN(key_, title_, kind_, ...) {#key_, title_, TABLE_TYPE_##kind_},
#define TABLE_CELL(key_, title_, kind_, ...)   table_##kind_(t, __VA_ARGS__);
#define TABLE_TYPE_text                        MSG_CELL_STRING
#define TABLE_TYPE_format                      MSG_CELL_STRING
#define TABLE_TYPE_id                          MSG_CELL_STRING
#define TABLE_TYPE_number                      MSG_CELL_NUMBER
#define TABLE_TYPE_number_if                   MSG_CELL_NUMBER
#define TABLE_TYPE_bool                        MSG_CELL_BOOL
#define TABLE_TYPE_flag                        MSG_CELL_BOOL
#define table_flag                             table_text /* "true", "false", or "" */
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
