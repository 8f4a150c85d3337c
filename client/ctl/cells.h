/* cells.h - reading the tables of commd's answers. A column that is not there is empty. */
#ifndef COMMCTL_CELLS_H
#define COMMCTL_CELLS_H

#include "shm/proto/msg.h"

/* NULL: there is none. */
static inline struct msg_table *table_named(const struct msg_tables *answer, const char *name)
{
    for (uint32_t i = 0; i < answer->ntables; i++)
        if (!strcmp(answer->tables[i].name, name))
            return &answer->tables[i];
    return NULL;
}

/* ncolumns: there is none. */
static inline uint32_t cells_column(const struct msg_table *t, const char *key)
{
    uint32_t i = 0;

    while (i < t->ncolumns && strcmp(t->columns[i].key, key))
        i++;
    return i;
}

static inline const char *cells_at(const struct msg_table *t, uint32_t row, uint32_t column)
{
    const char *text = column < t->ncolumns ? t->cells[(size_t)row * t->ncolumns + column] : NULL;

    return text ? text : "";
}

/* *ret_missing is @key if there is no such column, and stays as it is else. */
static inline const char *cells_by_key(const struct msg_table *t, uint32_t row, const char *key,
                                       const char **ret_missing)
{
    uint32_t column = cells_column(t, key);

    if (column == t->ncolumns)
        *ret_missing = key;
    return cells_at(t, row, column);
}

/* Of an empty cell 0. */
static inline uint64_t cells_number(const char *cell)
{
    return *cell ? strtoull(cell, NULL, 10) : 0;
}

#endif
