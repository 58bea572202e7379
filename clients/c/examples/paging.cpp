// An AMF's paging list in C++: RAII handles, a batch read of many contexts, and a compare-and-set
// on a value. Usage: paging PATH
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nearstate.h>

namespace {

ns_bytes bytes(std::string_view text)
{
    return {reinterpret_cast<const std::uint8_t *>(text.data()), text.size()};
}

std::string_view text(ns_bytes bytes)
{
    return {reinterpret_cast<const char *>(bytes.data), bytes.len};
}

// Errors become exceptions; other statuses such as NS_NOT_FOUND are returned.
ns_status check(ns_status status)
{
    if (status >= NS_BUG)
        throw std::runtime_error(std::string(ns_status_name(status)) + ": " + ns_last_error());
    return status;
}

struct Detach {
    void operator()(ns_region *region) const { ns_region_detach(region); }
};
struct Close {
    void operator()(ns_session *session) const { ns_session_close(session); }
};

// A view that is released at the end of its scope.
class View {
public:
    View(ns_session *session, ns_namespace space, std::string_view key)
    {
        is_there_ = check(ns_get(session, space, bytes(key), &view_)) == NS_OK;
    }
    ~View() { ns_view_release(&view_); }
    View(const View &) = delete;
    View &operator=(const View &) = delete;

    explicit operator bool() const { return is_there_; }
    std::string_view value() const { return text(view_.value); }

private:
    ns_view view_{};
    bool is_there_ = false;
};

int run(const char *path)
{
    ns_create_options options;
    check(ns_create_options_default(&options));
    options.bytes_max = 64u << 20;
    ns_region *attached = nullptr;
    check(ns_region_attach_or_create(path, &options, &attached));
    std::unique_ptr<ns_region, Detach> region(attached);
    ns_session *opened = nullptr;
    check(ns_session_open(region.get(), &opened));
    std::unique_ptr<ns_session, Close> session(opened);
    ns_namespace ues;
    check(ns_namespace_open(session.get(), bytes("ue-state"), NS_KIND_VALUE, &ues));

    // A value with an embedded NUL: a state, and the cell where the UE was last seen.
    const std::string idle("idle\0cell-7", 11);
    std::vector<std::string> names;
    for (int number = 0; number < 100; ++number)
        names.push_back("imsi-0010100000000" + std::to_string(10 + number));
    for (const auto &name : names)
        check(ns_put(session.get(), ues, bytes(name), bytes(idle), nullptr));

    // UE 42 answers the paging. A second compare-and-set with its previous state fails.
    const auto answer = [&](std::string_view state) {
        return check(ns_put_if_value(session.get(), ues, bytes(names[42]), bytes(state),
                                     bytes(idle), nullptr));
    };
    const bool is_first = answer("connected") == NS_OK;
    const bool is_second = answer("connected twice") == NS_OK;

    std::vector<ns_bytes> keys;
    for (const auto &name : names)
        keys.push_back(bytes(name));
    keys.push_back(bytes("imsi-unknown"));
    struct Seen {
        std::string_view idle;
        int still_idle;
        int absent;
    } seen{idle, 0, 0};
    const auto count = [](void *context, size_t, const ns_view *view) {
        auto *seen = static_cast<Seen *>(context);
        seen->absent += view == nullptr;
        seen->still_idle += view != nullptr && text(view->value) == seen->idle;
        return true;
    };
    check(ns_get_batch(session.get(), ues, {keys.data(), keys.size()}, count, &seen));

    const View ue(session.get(), ues, names[42]);
    std::printf("first %d second %d idle %d absent %d ue 42 %s\n", is_first, is_second,
                seen.still_idle, seen.absent, ue ? std::string(ue.value()).c_str() : "none");
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s PATH\n", argv[0]);
        return 2;
    }
    try {
        return run(argv[1]);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
}
