/* A growing line of text. No printf for integers: host time is measured on what calls this. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void put_bytes(struct text *line, const char *bytes, size_t count) {
  if (line->length + count + 1 > line->room) {
    line->room = 2 * (line->length + count) + 256;
    line->data = realloc(line->data, line->room);
  }
  memcpy(line->data + line->length, bytes, count);
  line->length += count;
  line->data[line->length] = 0;
}

void put(struct text *line, const char *words) { put_bytes(line, words, strlen(words)); }

void put_int(struct text *line, int64_t number) {
  char digits[24];
  int at = sizeof digits;
  uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
  do {
    digits[--at] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest);
  if (number < 0) digits[--at] = '-';
  put_bytes(line, digits + at, sizeof digits - at);
}

int begins(const char *words, const char *with) { return !strncmp(words, with, strlen(with)); }

/* The shortest decimal that reads back as the same number; 9 digits tell a float, 17 a double. */
void put_float(struct text *line, double number, int digits) {
  char words[40];
  for (int precision = 6; precision <= digits; precision++) {
    snprintf(words, sizeof words, "%.*g", precision, number);
    double read = strtod(words, NULL);
    if (digits == 9 ? (float)read == (float)number : read == number) break;
  }
  put(line, words);
}

void put_ints(struct text *line, const int64_t *numbers, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    if (i) put_bytes(line, ",", 1);
    put_int(line, numbers[i]);
  }
}
