/* The first line is a configuration, as JSON. Each of the next pairs of bytes is a call on permits
 * with this configuration, or time that passes. No permit grants more than its cost plus 1/4096,
 * and no limit offers more than its maximum. When all keys have been idle for long enough, all
 * counters are gone. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

static const char *const ids[] = {"a", "api/x", "login", "beta/y"};
static const char *const keys[] = {"", "ann", "vip-1", "\xc3\xa9t\xc3\xa9"};
static const double costs[] = {0, 1, 0.3, 2, 7, 100, 1e6, 1e15};

typedef struct permits_world {
    doorman_permits *permits;
    doorman_config *config;
    doorman_time epoch, now;
} permits_world;

static void check_permit(const doorman_permit *permit, const doorman_permit_request *request) {
    must(permit->wait >= 0 && permit->retry_after >= 0 && permit->valid_for >= 0);
    must(permit->wait <= request->max_wait);
    must(permit->granted == (permit->reason == DOORMAN_NO_REASON));
    for (size_t i = 0; permit->granted && i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        double granted = permit->items[i].granted, part = 1.0 / 4096;
        double min = request->equal || !item->has_min ? 0 : item->min;
        must(granted >= min && granted <= item->cost + part);
        must(permit->items[i].remaining >= 0 && permit->items[i].reset_after >= 0);
    }
    for (size_t i = 0; i < permit->detail_count; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        must(detail->most >= 0 && detail->remaining >= 0 && detail->reset_after >= 0);
        must(detail->remaining <= detail->most * (1 + 1e-9));
    }
}

static void acquire(permits_world *world, unsigned op) {
    doorman_permit_item items[3];
    doorman_permit permit;
    doorman_permit_request request = {.items = items, .item_count = 1 + op % 3, .detail = true};
    request.equal = op % 5 == 0;
    request.max_wait = op % 2 ? DOORMAN_SECOND * (op % 7) : 0;
    if (op & 1024) {
        request.client_id = "c";
        request.request_id = 1 + op % 16;
        request.settle_within = DOORMAN_SECOND * (op % 64);
    }
    for (unsigned i = 0; i < 3; i++) {
        items[i] = (doorman_permit_item){.resource_id = ids[(op >> i) % 4],
                                         .key = keys[(op >> (2 * i)) % 4],
                                         .cost = costs[(op >> i) % 8],
                                         .has_min = op % 4 == 0};
    }
    doorman_status status =
        doorman_permits_acquire(world->permits, &request, &permit, NULL, world->now);
    bool invalid = status == DOORMAN_INVALID_ARGUMENT; /* CONCURRENCY needs a request_id */
    must(status == DOORMAN_OK || invalid);
    if (status == DOORMAN_OK) check_permit(&permit, &request);
}

/* Settles a permit by its request_id or by a guessed id, or sends a report that counts once
 * (P28). */
static void settle(permits_world *world, unsigned op, unsigned value) {
    doorman_permit_item items[3];
    doorman_settlement out;
    const bool reports = op % 5 == 0, by_id = !reports && op % 7 == 0;
    for (unsigned i = 0; i < 3; i++) {
        items[i] = (doorman_permit_item){.resource_id = ids[(value >> i) % 4],
                                         .key = keys[(value >> (2 * i)) % 4],
                                         .cost = costs[(value + i) % 8]};
    }
    const doorman_settle_request request = {.client_id = "c",
                                            .id = by_id ? 1 + value : 0,
                                            .request_id = by_id ? 0 : 1 + value % 16,
                                            .items = items,
                                            .item_count = 1 + value % 3};
    doorman_status status =
        reports ? doorman_permits_report_once(world->permits, &request, &out, NULL, world->now)
                : doorman_permits_settle(world->permits, &request, &out, NULL, world->now);
    must(status == DOORMAN_OK);
    must(out.reason ? !out.items : out.item_count == request.item_count);
    for (size_t i = 0; i < out.item_count; i++) {
        must(out.items[i].charged >= 0 && out.items[i].charged <= items[i].cost);
        must(out.items[i].returned >= 0);
    }
}

static void call(permits_world *world, unsigned op, unsigned value) {
    double charged = 0, cost = costs[value % 8];
    const doorman_permit_item item = {
        .resource_id = ids[value % 4], .key = keys[value / 4 % 4], .cost = op > 128 ? -cost : cost};
    doorman_permit permit;
    switch (op % 8) {
    case 0: world->now += DOORMAN_SECOND * value / 4; break;
    case 1:
        world->epoch += (value % 2 ? -1 : 1) * DOORMAN_SECOND * (doorman_time)(value << 12);
        doorman_permits_set_epoch(world->permits, world->epoch, world->now);
        break;
    case 2:
        (void)doorman_permits_report(world->permits, &item, &charged, NULL, world->now);
        must(op > 128 ? charged <= 0 && charged >= -cost - 1 : charged >= 0 && charged <= cost + 1);
        break;
    case 3:
        must((op > 128
                  ? doorman_permits_ban(world->permits, &item, value * DOORMAN_SECOND, NULL,
                                        world->now)
                  : doorman_permits_reset(world->permits, &item, NULL, NULL, NULL)) == DOORMAN_OK);
        break;
    case 4:
        must(doorman_permits_inspect(world->permits, &item, &permit, NULL, world->now) ==
             DOORMAN_OK);
        break;
    case 5: must(doorman_permits_configure(world->permits, world->config) == DOORMAN_OK); break;
    case 6: settle(world, op / 8, value); break;
    default: acquire(world, value << 3 | op); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    permits_world world = {.epoch = 1700000000 * DOORMAN_SECOND, .now = DOORMAN_SECOND};
    fuzz_text rest = {(const char *)data, bytes}, line;
    if (!fuzz_line(&rest, &line)) return 0;
    if (doorman_json_config(&world.config, line.text, line.bytes, NULL) != DOORMAN_OK) return 0;
    const doorman_permits_options options = {
        .config = world.config, .seed = {1, 2}, .counter_max = 20, .memory_max = 4000};
    must(doorman_permits_create(&world.permits, &options, NULL, world.now) == DOORMAN_OK);
    doorman_permits_set_epoch(world.permits, world.epoch, world.now);
    for (size_t i = 0; i + 1 < rest.bytes && i < 2000; i += 2) {
        call(&world, (uint8_t)rest.text[i], (uint8_t)rest.text[i + 1]);
    }
    for (int i = 0; i < 3; i++) {
        world.now += 5 * DOORMAN_DURATION_MAX;
        for (int j = 0; j < 4; j++) doorman_permits_update(world.permits, world.now);
    }
    doorman_permits_info info;
    doorman_permits_read(world.permits, &info);
    must(info.counter_count == 0 && info.ban_count == 0 && info.resource_count == 0);
    must(info.request_count == 0 && info.reservation_count == 0);
    doorman_permits_destroy(world.permits);
    doorman_config_destroy(world.config);
    return 0;
}
