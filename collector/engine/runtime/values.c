/* Scalars, arrays and lists: written out with their values when they are made. */
#include "fake.h"

#include <string.h>

#define LISTED 64 /* of longer arrays only so many values are written, and how many more there are,
                     unless time is virtual: a duration depends on all */

static float half(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, rest = bits & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)rest / 16777216.0f;
  uint32_t whole = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | rest << 13;
  float number;
  memcpy(&number, &whole, sizeof number);
  return number;
}

static float brain(uint16_t bits) {
  uint32_t whole = (uint32_t)bits << 16;
  float number;
  memcpy(&number, &whole, sizeof number);
  return number;
}

static void put_scalar(struct text *line, const void *value, int dtype) {
  put_dtype(line, dtype);
  put(line, "=");
  switch (dtype) {
    case 0: put_float(line, *(const float *)value, 9); break;
    case 1: put_float(line, half(*(const uint16_t *)value), 9); break;
    case 2: put_int(line, *(const int8_t *)value); break;
    case 3: put_int(line, *(const int32_t *)value); break;
    case 4: put_int(line, *(const uint8_t *)value); break;
    case 6: put_int(line, *(const int16_t *)value); break;
    case 9: put_int(line, *(const int64_t *)value); break;
    case 11: put_float(line, *(const double *)value, 17); break;
    case 12: put_int(line, *(const uint8_t *)value != 0); break;
    case 27: put_float(line, brain(*(const uint16_t *)value), 9); break;
    default: put(line, "?");
  }
}

void *aclCreateScalar(void *value, int dtype) {
  struct text line = {0};
  put_scalar(&line, value, dtype);
  return words_handle(line);
}

static uint64_t listed(uint64_t count) {
  return count < LISTED || is_virtual() ? count : LISTED;
}

static void close_list(struct text *line, uint64_t count) {
  if (count > listed(count)) put(line, ",+"), put_int(line, (int64_t)(count - LISTED));
  put(line, ")");
}

void *aclCreateIntArray(const int64_t *values, uint64_t count) {
  struct text line = {0};
  put(&line, "ints(");
  put_ints(&line, values, listed(count));
  close_list(&line, count);
  return words_handle(line);
}

void *aclCreateBoolArray(const char *values, uint64_t count) {
  struct text line = {0};
  put(&line, "bools(");
  for (uint64_t i = 0; i < listed(count); i++) put(&line, i ? "," : ""), put_int(&line, values[i]);
  close_list(&line, count);
  return words_handle(line);
}

void *aclCreateFloatArray(const float *values, uint64_t count) {
  struct text line = {0};
  put(&line, "floats(");
  for (uint64_t i = 0; i < listed(count); i++)
    put(&line, i ? "," : ""), put_float(&line, values[i], 9);
  close_list(&line, count);
  return words_handle(line);
}

/* A list owns its elements, as in CANN: destroying the list destroys them. */
static void *list_of(const char *open, const char *close, void *const *elements, uint64_t count) {
  struct text line = {0};
  put(&line, open);
  for (uint64_t i = 0; i < count; i++) {
    if (i) put(&line, ", ");
    if (is_handle(elements[i])) put_handle(&line, elements[i]);
    else put(&line, "0");
    give_back(elements[i]);
  }
  put(&line, close);
  return words_handle(line);
}

void *aclCreateTensorList(void *const *tensors, uint64_t count) {
  return list_of("{", "}", tensors, count);
}

void *aclCreateScalarList(void *const *scalars, uint64_t count) {
  return list_of("scalars(", ")", scalars, count);
}
