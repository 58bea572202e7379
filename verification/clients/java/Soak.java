import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.Callable;

/**
 * What both Java clients share: the protocol between a client's program and its runner. `ok NAME`
 * reports a part that passed. `kill` asks for a SIGKILL of the node; a line on standard input
 * reports that it runs again, with the same region.
 */
final class Soak {
    static final String HOST = System.getenv("NEARSTATE_HOST");
    static final int PORT = Integer.parseInt(System.getenv("NEARSTATE_PORT"));
    static final int SENTINEL_PORT = Integer.parseInt(System.getenv("NEARSTATE_SENTINEL_PORT"));
    private static final BufferedReader LINES =
            new BufferedReader(new InputStreamReader(System.in));

    interface Part {
        void run() throws Exception;
    }

    private Soak() {}

    static void part(String name, Part part) throws Exception {
        try {
            part.run();
        } catch (Throwable error) {
            throw new AssertionError(name, error);
        }
        System.out.println("ok " + name);
    }

    static void kill() throws Exception {
        System.out.println("kill");
        same(LINES.readLine(), "restarted");
    }

    static void same(Object actual, Object expected) {
        if (!java.util.Objects.equals(actual, expected)) {
            throw new AssertionError("got " + actual + ", expected " + expected);
        }
    }

    /** Waits until a condition holds. */
    static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + 30_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what + ": 30 s");
            }
            Thread.sleep(2);
        }
    }

    static long requests(String info) {
        String[] parts = info.split("total_commands_processed:", 2);
        return Long.parseLong(parts[1].split("\r", 2)[0]);
    }
}
