// A MongoDB-compatible server in memory (mongo-java-server), and a load of the operations of
// `bench run nudsf` on it: a record of ten tags, two of them indexed, and a block of 700 bytes.
//
//   mvn -q dependency:copy-dependencies -DoutputDirectory=lib && javac -cp 'lib/*' MongoPeer.java
//   taskset -c 0 java -cp 'lib/*:.' MongoPeer serve 27017 &
//   taskset -c 1 java -cp 'lib/*:.' MongoPeer load 27017 $!
//
// Prints the rate of each operation, and the processor time of the server for one.

import static com.mongodb.client.model.Filters.eq;

import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.Indexes;
import com.mongodb.client.model.Projections;
import com.mongodb.client.model.ReplaceOptions;
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.ServerVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongConsumer;
import org.bson.Document;
import org.bson.types.Binary;

public final class MongoPeer {
    private static final int RECORDS = 1000;
    private static final int THREADS = 20;
    private static final long OPERATIONS = 40_000;
    // The compiler of the virtual machine needs some thousands of each.
    private static final long WARM_UP = 60_000;

    private static Document record(long number) {
        Document tags = new Document("supi", String.format("imsi-26201%010d", number));
        tags.append("group", "g" + number / 10);
        for (int tag = 0; tag < 8; tag++) {
            tags.append("tag" + tag, "value " + number + " " + tag);
        }
        byte[] block = "x".repeat(700).getBytes();
        return new Document("_id", "r" + number).append("tags", tags)
            .append("context", new Binary(block));
    }

    /** The processor time of a process in nanoseconds. */
    private static long processorTime(String process) throws Exception {
        String text = Files.readString(Path.of("/proc", process, "stat"));
        String[] fields = text.substring(text.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) * 10_000_000;
    }

    private static void all(long operations, LongConsumer operation) throws Exception {
        AtomicLong next = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < THREADS; index++) {
            Thread thread = new Thread(() -> {
                long at;
                while ((at = next.getAndIncrement()) < operations) {
                    operation.accept(at % RECORDS);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void measure(String name, String process, LongConsumer operation)
            throws Exception {
        all(WARM_UP, operation);
        long cpu = processorTime(process);
        long begun = System.nanoTime();
        all(OPERATIONS, operation);
        double seconds = (System.nanoTime() - begun) / 1e9;
        double each = (processorTime(process) - cpu) / 1e3 / OPERATIONS;
        System.out.printf("%-20s %8.0f/s %6.1f us%n", name, OPERATIONS / seconds, each);
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new IllegalStateException("a record is missing");
        }
    }

    public static void main(String[] words) throws Exception {
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("serve")) {
            MemoryBackend backend = new MemoryBackend();
            backend.version(ServerVersion.MONGO_5_0);
            new MongoServer(backend).bind("127.0.0.1", port);
            Thread.currentThread().join();
        }
        String process = words[2];
        String uri = "mongodb://127.0.0.1:" + port + "/?maxPoolSize=" + THREADS;
        try (var client = MongoClients.create(uri)) {
            MongoCollection<Document> records = client.getDatabase("udsf").getCollection("records");
            records.createIndex(Indexes.ascending("tags.supi"));
            records.createIndex(Indexes.ascending("tags.group"));
            ReplaceOptions upsert = new ReplaceOptions().upsert(true);
            for (long number = 0; number < RECORDS; number++) {
                records.replaceOne(eq("_id", "r" + number), record(number), upsert);
            }
            measure("GET record", process, number ->
                check(records.find(eq("_id", "r" + number)).first() != null));
            measure("PUT record", process, number ->
                check(records.replaceOne(eq("_id", "r" + number), record(number), upsert)
                    .wasAcknowledged()));
            measure("GET block", process, number ->
                check(records.find(eq("_id", "r" + number))
                    .projection(Projections.include("context")).first() != null));
            measure("search of 10", process, number -> {
                List<Document> found = records.find(eq("tags.group", "g" + number / 10))
                    .projection(Projections.include("_id")).into(new ArrayList<>());
                check(found.size() == 10);
            });
        }
    }
}
