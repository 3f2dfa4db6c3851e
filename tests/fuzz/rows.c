/* The input is a row of a counter, a ban or a reservation, as a store may have it, perhaps damaged
 * or written by another program. The row is refused with an error, or restored. A restored counter
 * never offers more than its limit. A second restore of the row changes nothing. After further
 * calls, another object of permits can restore all changed rows. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

static const char limits[] =
    "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
    "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\"},"
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.5, \"size\": 100, \"max_debt\": 9},"
    "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 100, \"window\": 1600},"
    "{\"name\": \"n\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 100, \"window\": 1e-9,"
    " \"durable\": true},"
    "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": ["
    "{\"limit\": 10, \"window\": 60, \"active\": 60, \"cooldown\": 9, \"skippable\": true},"
    "{\"limit\": 30, \"window\": 160, \"active\": 300, \"cooldown\": 600}]},"
    "{\"name\": \"r\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, \"window\": 100,"
    " \"per\": \"resource\"},"
    "{\"name\": \"g\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1000,"
    " \"per\": \"template\"}]}]}";

typedef struct rows_world {
    doorman_permits *permits;
    doorman_time now;
} rows_world;

static rows_world start(const doorman_config *config, doorman_time now) {
    rows_world world = {.now = now};
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    must(doorman_permits_create(&world.permits, &options, NULL, now) == DOORMAN_OK);
    doorman_permits_set_epoch(world.permits, 1700000000 * DOORMAN_SECOND, now);
    return world;
}

/* Reads what is left of all limits for the key of a row. Returns how many limits there are. */
static size_t look(rows_world *world, const doorman_permit_row *row, double *left) {
    doorman_permit permit;
    const doorman_permit_item item = {.resource_id = row->resource_id[0] ? row->resource_id : "x",
                                      .key = row->key};
    must(doorman_permits_inspect(world->permits, &item, &permit, NULL, world->now) == DOORMAN_OK);
    for (size_t i = 0; i < permit.detail_count; i++) {
        const doorman_permit_detail *detail = &permit.details[i];
        must(detail->remaining >= 0 && detail->remaining <= detail->most);
        must(detail->reset_after >= 0 && detail->more_after >= 0);
        left[i] = detail->remaining;
    }
    must(permit.retry_after >= 0);
    return permit.detail_count;
}

static void use(rows_world *world, const doorman_permit_row *row) {
    doorman_permit permit;
    const doorman_permit_item item = {
        .resource_id = row->resource_id[0] ? row->resource_id : "x", .key = row->key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    for (int i = 0; i < 3; i++) {
        must(doorman_permits_acquire(world->permits, &request, &permit, NULL, world->now) ==
             DOORMAN_OK);
        must(permit.retry_after >= 0);
        world->now += (doorman_time)37 * DOORMAN_SECOND;
    }
}

/* Settles the reservation of a row. Does nothing for other rows. */
static void settle(rows_world *world, const doorman_permit_row *row) {
    doorman_settlement out;
    const doorman_permit_item item = {.resource_id = "x", .key = "k", .cost = 3};
    const uint64_t number = row->is_reservation ? strtoull(row->key + 1, NULL, 10) : 0;
    const bool by_id = row->key[0] == 'i';
    const doorman_settle_request request = {.client_id = row->resource_id,
                                            .id = by_id ? number : 0,
                                            .request_id = by_id ? 0 : number,
                                            .items = &item,
                                            .item_count = 1};
    if (!number) return;
    must(doorman_permits_settle(world->permits, &request, &out, NULL, world->now) == DOORMAN_OK);
    must(out.reason || (out.items[0].charged >= 0 && out.items[0].returned >= 0));
}

/* Restores all changed rows of `from` in `to`. */
static void move(rows_world *from, rows_world *to) {
    unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX];
    for (size_t bytes; (bytes = doorman_permits_next_changed(from->permits, row, from->now));) {
        must(bytes <= sizeof row);
        must(doorman_permits_restore(to->permits, row, bytes, NULL, to->now) == DOORMAN_OK);
        must(doorman_permits_mark_changed(to->permits, row, bytes, NULL) == DOORMAN_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    doorman_permit_row row;
    doorman_error error = {0};
    doorman_status read = doorman_permit_row_read(data, bytes, &row, &error);
    must(read == DOORMAN_OK || error.text[0]);
    static doorman_config *config; /* the same for all inputs */
    if (!config) must(doorman_json_config(&config, limits, strlen(limits), NULL) == DOORMAN_OK);
    rows_world world = start(config, 5 * DOORMAN_SECOND), other = start(config, 0);
    doorman_status status = doorman_permits_restore(world.permits, data, bytes, &error, world.now);
    if (read != DOORMAN_OK) must(status == read);
    if (status == DOORMAN_OK && !row.is_clock) {
        double first[16] = {0}, second[16] = {0};
        size_t count = look(&world, &row, first);
        must(doorman_permits_restore(world.permits, data, bytes, NULL, world.now) == DOORMAN_OK);
        must(look(&world, &row, second) == count);
        for (size_t i = 0; i < count; i++) must(fabs(first[i] - second[i]) <= 1e-9);
        use(&world, &row);
        move(&world, &other);
        use(&other, &row);
        settle(&other, &row);
        move(&other, &world);
        (void)look(&world, &row, first);
    }
    doorman_permits_destroy(world.permits);
    doorman_permits_destroy(other.permits);
    return 0;
}
