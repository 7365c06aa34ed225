// the ranges, marks and plan against brute force over single positions

#include "llama-ridgefill-marks.h"
#include "llama-ridgefill.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

static constexpr llama_pos N_POS = 64;

#define CHECK(cond)                                                    \
    do {                                                               \
        if (!(cond)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
            exit(1);                                                   \
        }                                                              \
    } while (0)

using positions = std::vector<uint64_t>;  // identity of each filled position, 0 = not filled

static positions expand(const llama_ridgefill_ranges & ranges) {
    positions res(4 * N_POS, 0);
    llama_pos last = -1;
    for (const auto & r : ranges.get()) {
        CHECK(r.p0 < r.p1 && r.p0 >= last);
        last = r.p1;
        for (llama_pos p = r.p0; p < r.p1; ++p) {
            res.at(p) = r.id;
        }
    }
    return res;
}

static void test_ranges(std::mt19937 & rng) {
    llama_ridgefill_ranges ranges;
    positions              expected(4 * N_POS, 0);

    const auto pick = [&](int n) {
        return (llama_pos) (rng() % n);
    };

    for (int step = 0; step < 200; ++step) {
        const llama_pos p0     = pick(N_POS);
        const llama_pos p1     = pick(N_POS);
        const positions before = expected;

        switch (pick(4)) {
            case 0:
            case 1:
                {
                    const uint64_t id = 1 + pick(2);
                    ranges.add(p0, p1, id);
                    for (llama_pos p = p0; p < p1; ++p) {
                        expected[p] = id;
                    }
                }
                break;
            case 2:
                ranges.erase(p0, p1);
                for (llama_pos p = p0; p < p1; ++p) {
                    expected[p] = 0;
                }
                break;
            case 3:
                {
                    // as a context shift does: cut out [p0, p1), then close the gap
                    if (p0 < p1) {
                        ranges.erase(p0, p1);
                        ranges.shift(p1, 4 * N_POS, p0 - p1);
                        for (llama_pos p = p0; p < 4 * N_POS; ++p) {
                            expected[p] = p + p1 - p0 < 4 * N_POS ? before[p + p1 - p0] : 0;
                        }
                    }
                }
                break;
        }

        CHECK(expand(ranges) == expected);
        for (llama_pos p = 0; p < N_POS; ++p) {
            CHECK(ranges.contains(p) == (expected[p] != 0));
        }
    }
}

static void test_subtract(std::mt19937 & rng) {
    for (int i = 0; i < 2000; ++i) {
        llama_ridgefill_ranges ranges;
        llama_ridgefill_ranges others;
        for (int k = rng() % 6; k > 0; --k) {
            const llama_pos p0 = rng() % N_POS;
            ranges.add(p0, p0 + rng() % 12, 1 + rng() % 2);
        }
        for (int k = rng() % 8; k > 0; --k) {
            const llama_pos p0 = rng() % N_POS;
            others.add(p0, p0 + rng() % 12, 1);
        }
        positions  expected = expand(ranges);
        const auto removed  = expand(others);
        for (size_t p = 0; p < expected.size(); ++p) {
            expected[p] = removed[p] ? 0 : expected[p];
        }
        ranges.subtract(others);
        CHECK(expand(ranges) == expected);
    }
}

static void test_reusable(std::mt19937 & rng) {
    for (int i = 0; i < 2000; ++i) {
        llama_ridgefill_marks  marks;
        llama_ridgefill_ranges want;

        const int n = rng() % 4;
        for (int k = 0; k < n; ++k) {
            const llama_pos p0 = rng() % N_POS;
            marks.filled[3].add(p0, p0 + rng() % 16, 1 + rng() % 8 / 7);
            const llama_pos q0 = rng() % N_POS;
            want.add(q0, q0 + rng() % 32, 0);
        }
        const llama_pos n_past = rng() % N_POS;

        const auto filled = expand(marks.filled[3]);

        llama_pos expected = 0;
        while (expected < n_past && (filled[expected] == 0 || (filled[expected] == 1 && want.contains(expected)))) {
            expected++;
        }
        CHECK(marks.reusable(3, want, 1, n_past) == expected);
        CHECK(marks.reusable(4, want, 1, n_past) == n_past);
    }
}

static void test_sequences() {
    llama_ridgefill_marks marks;
    marks.filled[0].add(4, 20, 7);

    marks.seq_cp(0, 1, 0, 10);
    CHECK(expand(marks.filled[1])[9] == 7 && expand(marks.filled[1])[10] == 0);

    CHECK(!marks.seq_rm(false, 0, 5, -1));  // the memory refused: the cells are still there
    CHECK(marks.filled[0].contains(19));
    CHECK(marks.seq_rm(true, 0, 5, -1));
    CHECK(marks.filled[0].contains(4) && !marks.filled[0].contains(5));
    CHECK(marks.filled[1].contains(5));

    marks.seq_add(1, 4, -1, 30);
    CHECK(!marks.filled[1].contains(9) && marks.filled[1].contains(34) && marks.filled[1].contains(39));
    marks.seq_div(1, 0, -1, 2);
    CHECK(marks.filled[1].contains(17) && marks.filled[1].contains(19) && !marks.filled[1].contains(20));

    marks.seq_keep(1);
    CHECK(marks.filled.count(0) == 0 && marks.filled.count(1) == 1);
    CHECK(marks.seq_rm(true, -1, -1, -1));
    CHECK(marks.filled[1].empty());
}

// rows that saw filled cells do not become exact when these cells go
static void test_approximate() {
    const llama_ridgefill_ranges exact;
    {
        llama_ridgefill_marks marks;
        marks.filled[0].add(4, 20, 7);
        CHECK(marks.approximate_from(0) == 4 && marks.reusable(0, exact, 7, 100) == 4);
        marks.seq_rm(true, 0, 2, 30);
        CHECK(marks.filled[0].empty() && marks.reusable(0, exact, 7, 100) == 2);
        marks.seq_add(0, 30, -1, -28);
        CHECK(marks.reusable(0, exact, 7, 100) == 2);
        marks.seq_rm(true, 0, 1, -1);
        CHECK(marks.reusable(0, exact, 7, 100) == 100);
    }
    {
        llama_ridgefill_marks marks;
        marks.filled[0].add(4, 20, 7);
        marks.seq_cp(0, 1, 50, -1);
        CHECK(marks.filled[1].empty() && marks.reusable(1, exact, 7, 100) == 50);
        marks.seq_cp(0, 2, -1, 10);
        CHECK(marks.reusable(2, exact, 7, 100) == 4 && marks.healed_to.count(2) == 0);

        // cells of its own: the copy has all of them and nothing else, and split states to copy
        marks.shared_cells = false;
        marks.states[0].add(6, 20, 0);
        marks.states[2].add(0, 10, 0);
        marks.seq_cp(0, 2, 0, 0);
        CHECK(!marks.states[2].contains(5) && marks.states[2].contains(6) && marks.states[2].contains(19));
        CHECK(marks.filled[2].contains(19));
        CHECK(marks.copies.size() == 1 && marks.copies[0].first == 0 && marks.copies[0].second == 2);
    }
}

static void test_plan() {
    llama_ridgefill_range       ranges[8];
    llama_ridgefill_plan_params params = { /*.sink =*/4, /*.tail =*/10, /*.min_prompt =*/30, /*.exact =*/nullptr,
                                           /*.n_exact =*/0 };

    CHECK(llama_ridgefill_plan(params, 29, ranges, 8) == 0);
    CHECK(llama_ridgefill_plan(params, 30, ranges, 8) == 1 && ranges[0].p0 == 4 && ranges[0].p1 == 20);

    params.min_prompt = 0;
    CHECK(llama_ridgefill_plan(params, 10, ranges, 8) == 0);
    CHECK(llama_ridgefill_plan(params, 14, ranges, 8) == 0);
    CHECK(llama_ridgefill_plan(params, 15, ranges, 8) == 1 && ranges[0].p0 == 4 && ranges[0].p1 == 5);

    // out of order, overlapping, empty, beyond the prompt
    const llama_ridgefill_range exact[] = {
        { 50, 60  },
        { 10, 20  },
        { 15, 25  },
        { 30, 30  },
        { 95, 200 }
    };
    params.exact   = exact;
    params.n_exact = 5;
    CHECK(llama_ridgefill_plan(params, 100, ranges, 8) == 3);
    CHECK(ranges[0].p0 == 4 && ranges[0].p1 == 10);
    CHECK(ranges[1].p0 == 25 && ranges[1].p1 == 50);
    CHECK(ranges[2].p0 == 60 && ranges[2].p1 == 90);
    CHECK(llama_ridgefill_plan(params, 100, ranges, 2) == -1);

    params.n_exact = 0;
    params.tail    = 0;
    CHECK(llama_ridgefill_plan(params, 100, ranges, 8) == -1 && llama_ridgefill_last_error()[0] != '\0');
}

int main() {
    for (uint32_t seed = 0; seed < 50; ++seed) {
        std::mt19937 rng(seed);
        test_ranges(rng);
        test_subtract(rng);
        test_reusable(rng);
    }
    test_sequences();
    test_approximate();
    test_plan();

    printf("ok\n");
    return 0;
}
