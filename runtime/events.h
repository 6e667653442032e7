/* TensorBoard event files: scalars by step. */
#ifndef DLC_RUNTIME_EVENTS_H
#define DLC_RUNTIME_EVENTS_H

#include "fail.h"

#include <stdint.h>

typedef struct Events Events;

/* Makes the folder and a new event file in it; NULL after filling f. Nothing after this allocates. */
Events *events_open(const char *dir, Fail *f);
void events_close(Events *e); /* NULL is allowed */
/* Adds a point to the buffer; one that is not finite is left out, as TensorBoard cannot show it. */
void events_scalar(Events *e, int64_t step, const char *tag, double value);
/* Writes what was added; false where the file cannot be written (errno). */
bool events_flush(Events *e);

#endif
