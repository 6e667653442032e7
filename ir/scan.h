/* The scanner of IR text. Private to ir/. */
#ifndef DLC_IR_SCAN_H
#define DLC_IR_SCAN_H

#include "ir.h"

typedef enum TokenKind {
	T_END,
	T_NAME,   /* letters, digits, _ */
	T_VALUE,  /* %name; text is the name */
	T_STRING, /* text is what it means */
	T_INT,
	T_FLOAT,  /* with a point or an exponent; inf and nan are names */
	T_PUNCT   /* one character, in `punct` */
} TokenKind;

typedef struct Token {
	TokenKind kind;
	char punct;
	bool first;    /* the first on its line */
	bool overflow; /* an integer that does not fit; reported */
	Span span;
	const char *text;
	size_t len;
	int64_t i;
	double f;
} Token;

typedef struct Scanner {
	Arena *arena;
	Diag *diag;
	const char *text;
	size_t len, at;
	int source;
	Token token; /* the one at hand */
} Scanner;

/* Moves to the next token; faults of form are reported and skipped. */
void scan_next(Scanner *s);
/* The first character of the token after the one at hand; 0 at the end of the text. */
char scan_peek(const Scanner *s);
bool scan_at(const Scanner *s, char punct);
bool scan_at_name(const Scanner *s, const char *name);
/* The token at hand in words for a message: "'}'", "the end of the text". */
const char *scan_found(const Scanner *s);

#endif
