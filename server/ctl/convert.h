/* doormanctl: what converts a configuration of Envoy's ratelimit. */
#ifndef DOORMAN_CTL_CONVERT_H
#define DOORMAN_CTL_CONVERT_H

#include "ctl.h"

#define CTL_YAML_BYTES_MAX ((size_t)4 << 20)
#define CTL_ERROR_BYTES 256

/* Reads the documents of a YAML text. A scalar becomes a string, or null if it is empty, ~ or null
 * without quotes. An alias becomes a copy of its anchor, and `<<` adds the fields of other objects.
 *   error     out: why the text cannot be read
 *   returns   an array of the documents, which the caller destroys; NULL: the text is no YAML, or
 *             has more than CTL_YAML_BYTES_MAX bytes, 32 levels, or 100,000 values with the
 *             copies */
cJSON *ctl_yaml_read(const char *text, size_t bytes, char error[CTL_ERROR_BYTES]);

/* A conversion of one or several documents. The caller fills it with zeros, and sets `report` and
 * `file`. */
struct ctl_conversion {
    FILE *report;        /* gets a line for each thing that is left out, and for each note */
    const char *file;    /* for these lines: where the document is from */
    size_t left_count;   /* things that are left out, so decisions can differ */
    cJSON *rules;        /* of `descriptors` */
    cJSON *templates;    /* of `resources` */
    cJSON *domains;      /* an object with the domains so far */
    bool has_many_rules; /* more than a configuration can have */
};

/* Converts a document.
 *   conversion   in/out
 *   document     of ctl_yaml_read */
void ctl_convert(struct ctl_conversion *conversion, const cJSON *document);

/* Writes the configuration, with a line for each rule and each template. */
void ctl_conversion_write(const struct ctl_conversion *conversion, FILE *out);

void ctl_conversion_free(struct ctl_conversion *conversion);

#endif
