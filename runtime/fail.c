/* Error texts; see fail.h. */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool fail(Fail *f, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	f->code = code;
	vsnprintf(f->text, sizeof f->text, fmt, ap);
	va_end(ap);
	return false;
}

void fail_add(Fail *f, const char *fmt, ...)
{
	va_list ap;
	size_t n = strlen(f->text);
	va_start(ap, fmt);
	vsnprintf(f->text + n, sizeof f->text - n, fmt, ap);
	va_end(ap);
}
