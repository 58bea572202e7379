// Apache Geode for `nearstate bench run`: a locator, or a server with a gateway.
//
// The gateway is a socket of the loopback interface. It takes small frames and does what they
// say with Geode's regions in this process, so that a client in another language measures Geode and
// not a second client library. `ping` does nothing but pass the door: what that costs is in every
// figure of this target, and can be measured alone.
//
//   frame: length u32 | operation u8 | fields           answer: status u8 | fields
//   key, value of a tag: length u16 | bytes             part: number u8 | length u32 | bytes
//
// All numbers are big-endian. A frame that makes no sense ends the connection.

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInput;
import java.io.DataInputStream;
import java.io.DataOutput;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;

import org.apache.geode.DataSerializable;
import org.apache.geode.Delta;
import org.apache.geode.Instantiator;
import org.apache.geode.InvalidDeltaException;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.CacheTransactionManager;
import org.apache.geode.cache.CommitConflictException;
import org.apache.geode.cache.EntryNotFoundException;
import org.apache.geode.cache.PartitionAttributesFactory;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionFactory;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.Scope;
import org.apache.geode.cache.TransactionException;
import org.apache.geode.cache.partition.PartitionRegionHelper;
import org.apache.geode.distributed.Locator;

public final class NearstateGeode {
  /** A frame has fewer bytes: above it a length is nonsense. */
  static final int FRAME_BYTES_MAX = 256 << 20;

  /** Bytes that are read and written at once. */
  static final int BUFFER_BYTES = 64 << 10;

  /** Parts of a record at the most: a set of them is a number of 16 bits. */
  static final int PARTS_MAX = 16;

  static final int NO = 0;
  static final int YES = 1;
  static final int CONFLICT = 2;
  static final int TAKEN = 3;
  static final int FAILED = 4;

  /** A record: its parts, and which of them the last change has set. */
  public static final class Entry implements DataSerializable, Delta {
    private static final long serialVersionUID = 1;

    static {
      Instantiator.register(new Instantiator(Entry.class, 29) {
        @Override
        public DataSerializable newInstance() {
          return new Entry();
        }
      });
    }

    byte[][] parts;
    private transient int changed;

    public Entry() {}

    Entry(byte[][] parts, int changed) {
      this.parts = parts;
      this.changed = changed;
    }

    @Override
    public void toData(DataOutput out) throws IOException {
      out.writeByte(parts.length);
      for (byte[] part : parts) {
        out.writeInt(part.length);
        out.write(part);
      }
    }

    @Override
    public void fromData(DataInput in) throws IOException {
      parts = new byte[in.readUnsignedByte()][];
      for (int at = 0; at < parts.length; at++) {
        parts[at] = new byte[in.readInt()];
        in.readFully(parts[at]);
      }
    }

    @Override
    public boolean hasDelta() {
      return changed != 0;
    }

    @Override
    public void toDelta(DataOutput out) throws IOException {
      out.writeShort(changed);
      for (int at = 0; at < parts.length; at++) {
        if ((changed & 1 << at) != 0) {
          out.writeInt(parts[at].length);
          out.write(parts[at]);
        }
      }
    }

    @Override
    public void fromDelta(DataInput in) throws IOException, InvalidDeltaException {
      int set = in.readUnsignedShort();
      byte[][] next = parts.clone();
      for (int at = 0; at < next.length; at++) {
        if ((set & 1 << at) != 0) {
          next[at] = new byte[in.readInt()];
          in.readFully(next[at]);
        }
      }
      parts = next;
    }
  }

  /** A table of the workload, and where its records and tags are. */
  static final class Table {
    final String name;
    final int parts;
    /** For each tag: 'u' unique, 'n' not. */
    final String rules;
    /** One region, or one for each zone. */
    final List<Region<String, Entry>> records = new ArrayList<>();
    /** The copies of all zones. */
    Region<String, Entry> global;
    final List<Region<String, String>> tags = new ArrayList<>();

    /** `NAME:PARTS:RULES`. */
    Table(String words) {
      String[] word = words.split(":", -1);
      name = word[0];
      parts = Integer.parseInt(word[1]);
      rules = word[2];
      if (parts < 1 || parts > PARTS_MAX) {
        throw new IllegalArgumentException("a table of " + parts + " parts");
      }
    }

    Region<String, Entry> of(String key) {
      int zones = records.size();
      return zones == 1 ? records.get(0) : records.get(Math.floorMod(key.hashCode(), zones));
    }
  }

  /** Another record has this value of a unique tag. */
  static final class Taken extends Exception {
    private static final long serialVersionUID = 1;

    final int tag;
    final String holder;

    Taken(int tag, String holder) {
      super(null, null, false, false);
      this.tag = tag;
      this.holder = holder;
    }
  }

  /** A tag and its value. */
  record Tag(int number, String value) {}

  private final Cache cache;
  private final CacheTransactionManager transactions;
  private final List<Table> tables = new ArrayList<>();
  private final int number;
  private final int servers;
  private boolean isSpread;

  private NearstateGeode(Cache cache, int number, int servers) {
    this.cache = cache;
    this.transactions = cache.getCacheTransactionManager();
    this.number = number;
    this.servers = servers;
  }

  /**
   * `locator PORT FOLDER`, or `server NUMBER FRONT-PORT LOCATOR-PORT FOLDER LAYOUT SERVERS COPIES
   * TABLE...`.
   */
  public static void main(String[] words) {
    PrintStream terminal = System.err;
    try {
      if (words.length == 3 && words[0].equals("locator")) {
        quiet(words[2], "locator.err");
        locate(words);
      } else if (words.length >= 8 && words[0].equals("server")) {
        quiet(words[4], "server.err");
        serve(words);
      } else {
        throw new IllegalArgumentException("locator or server, as the comment says");
      }
    } catch (Exception failure) {
      terminal.println("geode's " + String.join(" ", words) + ": " + failure);
      for (Throwable why = failure.getCause(); why != null; why = why.getCause()) {
        terminal.println("  because of " + why);
      }
      System.exit(1);
    }
  }

  /** What libraries say of their loggers is not for the terminal of a benchmark. */
  private static void quiet(String folder, String file) throws IOException {
    System.setErr(new PrintStream(new File(folder, file), StandardCharsets.UTF_8));
  }

  private static void locate(String[] words) throws Exception {
    File log = new File(words[2], "locator.log");
    InetAddress loopback = InetAddress.getByName("127.0.0.1");
    Locator.startLocatorAndDS(Integer.parseInt(words[1]), log, loopback, properties(words[2]));
    new CountDownLatch(1).await();
  }

  private static Properties properties(String folder) {
    Properties properties = new Properties();
    properties.setProperty("mcast-port", "0");
    properties.setProperty("bind-address", "127.0.0.1");
    properties.setProperty("jmx-manager", "false");
    properties.setProperty("jmx-manager-start", "false");
    properties.setProperty("enable-cluster-configuration", "false");
    properties.setProperty("use-cluster-configuration", "false");
    properties.setProperty("http-service-port", "0");
    properties.setProperty("statistic-sampling-enabled", "false");
    properties.setProperty("log-level", "warning");
    return properties;
  }

  private static void serve(String[] words) throws Exception {
    int number = Integer.parseInt(words[1]);
    String folder = words[4];
    int servers = Integer.parseInt(words[6]);
    Properties properties = properties(folder);
    properties.setProperty("locators", "127.0.0.1[" + words[3] + "]");
    properties.setProperty("name", "server-" + number);
    properties.setProperty("groups", "zone-" + number);
    properties.setProperty("log-file", new File(folder, "server.log").getPath());
    properties.setProperty("conserve-sockets", "false");
    Cache cache = new CacheFactory(properties).create();
    NearstateGeode geode = new NearstateGeode(cache, number, servers);
    for (String table : Arrays.asList(words).subList(8, words.length)) {
      geode.open(new Table(table), words[5], Integer.parseInt(words[7]));
    }
    try (ServerSocket door = new ServerSocket()) {
      door.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[2])), 1024);
      for (;;) {
        Socket client = door.accept();
        client.setTcpNoDelay(true);
        Thread thread = new Thread(() -> geode.talk(client), "gateway");
        thread.setDaemon(true);
        thread.start();
      }
    }
  }

  /**
   * The regions of a table, as the layout says. All of them clone a record before they apply a
   * delta to it: else a reader could meet it half changed, and a transaction that is given up would
   * have changed it.
   */
  private void open(Table table, String layout, int copies) {
    switch (layout) {
      case "partitioned" -> table.records.add(partitioned(table.name, copies));
      case "replicated" -> table.records.add(replicated(table.name));
      case "zones" -> {
        // Each server is a member group of its own and holds its zone; others reach it over it.
        for (int zone = 0; zone < servers; zone++) {
          String name = table.name + "-zone-" + zone;
          RegionFactory<String, Entry> factory = zone == number
              ? cache.createRegionFactory(RegionShortcut.REPLICATE)
              : cache.createRegionFactory(RegionShortcut.REPLICATE_PROXY);
          factory.setScope(Scope.DISTRIBUTED_ACK).setCloningEnabled(true);
          table.records.add(factory.create(name));
        }
        table.global = partitioned(table.name + "-global", copies);
      }
      default -> throw new IllegalArgumentException("no layout is called " + layout);
    }
    for (int tag = 0; tag < table.rules.length(); tag++) {
      String name = table.name + "-tag-" + tag;
      table.tags.add(layout.equals("partitioned") ? partitioned(name, copies) : replicated(name));
    }
    tables.add(table);
  }

  private <V> Region<String, V> partitioned(String name, int copies) {
    PartitionAttributesFactory<String, V> attributes = new PartitionAttributesFactory<>();
    attributes.setRedundantCopies(copies);
    RegionFactory<String, V> factory = cache.createRegionFactory(RegionShortcut.PARTITION);
    factory.setPartitionAttributes(attributes.create()).setCloningEnabled(true);
    return factory.create(name);
  }

  private <V> Region<String, V> replicated(String name) {
    RegionFactory<String, V> factory = cache.createRegionFactory(RegionShortcut.REPLICATE);
    factory.setScope(Scope.DISTRIBUTED_ACK).setCloningEnabled(true);
    return factory.create(name);
  }

  /**
   * Once the locator and all other servers are there, the first server gives every bucket a home: a
   * transaction cannot touch one that has none. The first server is the last to be asked who it is.
   */
  private synchronized void spread(int others) {
    if (number != 0 || others < servers || isSpread) {
      return;
    }
    for (Region<?, ?> region : cache.rootRegions()) {
      if (PartitionRegionHelper.isPartitionedRegion(region)) {
        PartitionRegionHelper.assignBucketsToPartitions(region);
      }
    }
    isSpread = true;
  }

  /** A client's conversation. Its transaction, if it has begun one, belongs to this thread. */
  private void talk(Socket client) {
    try (client) {
      BufferedInputStream arrived = new BufferedInputStream(client.getInputStream(), BUFFER_BYTES);
      DataInputStream in = new DataInputStream(arrived);
      DataOutputStream out =
          new DataOutputStream(new BufferedOutputStream(client.getOutputStream(), BUFFER_BYTES));
      for (;;) {
        int length = in.readInt();
        if (length < 1 || length > FRAME_BYTES_MAX) {
          return;
        }
        answer(in, out);
        // Pipelined requests get their replies in one flush.
        if (arrived.available() == 0) {
          out.flush();
        }
      }
    } catch (EOFException gone) {
      // The client has ended.
    } catch (IOException | IllegalArgumentException broken) {
      System.err.println("gateway: " + broken);
    } finally {
      if (transactions.exists()) {
        transactions.rollback();
      }
    }
  }

  private void answer(DataInputStream in, DataOutputStream out) throws IOException {
    int operation = in.readUnsignedByte();
    switch (operation) {
      case 0 -> {
        int others = cache.getDistributedSystem().getAllOtherMembers().size();
        spread(others);
        out.writeByte(YES);
        out.writeLong(ProcessHandle.current().pid());
        out.writeByte(others);
      }
      case 1 -> {
        Table table = table(in);
        String key = text(in);
        int wanted = in.readUnsignedShort();
        attempt(out, () -> parts(out, table.of(key).get(key), wanted));
      }
      case 2 -> {
        Table table = table(in);
        String key = text(in);
        Entry entry = new Entry(new byte[table.parts][], 0);
        readParts(in, entry.parts);
        List<Tag> after = tags(in);
        List<Tag> before = tags(in);
        attempt(out, () -> {
          whole(entry.parts);
          tagged(table, key, before, after, () -> put(table, key, entry));
          out.writeByte(YES);
        });
      }
      case 3 -> {
        Table table = table(in);
        String key = text(in);
        byte[][] changes = new byte[table.parts][];
        readParts(in, changes);
        List<Tag> after = tags(in);
        List<Tag> before = tags(in);
        attempt(out, () -> out.writeByte(change(table, key, changes, before, after)));
      }
      case 4 -> {
        Table table = table(in);
        String key = text(in);
        List<Tag> before = tags(in);
        attempt(out, () -> out.writeByte(delete(table, key, before)));
      }
      case 5 -> {
        Table table = table(in);
        Tag tag = tag(in);
        int wanted = in.readUnsignedShort();
        attempt(out, () -> find(out, table, tag, wanted));
      }
      case 6 -> attempt(out, () -> {
        transactions.begin();
        out.writeByte(YES);
      });
      case 7 -> attempt(out, () -> {
        transactions.commit();
        out.writeByte(YES);
      });
      case 8 -> attempt(out, () -> {
        if (transactions.exists()) {
          transactions.rollback();
        }
        out.writeByte(YES);
      });
      default -> throw new IllegalArgumentException("operation " + operation);
    }
  }

  /** Something that Geode does. */
  interface Deed {
    void run() throws IOException, Taken;
  }

  private void attempt(DataOutputStream out, Deed deed) throws IOException {
    try {
      deed.run();
    } catch (Taken taken) {
      out.writeByte(TAKEN);
      out.writeByte(taken.tag);
      text(out, taken.holder);
    } catch (CommitConflictException conflict) {
      out.writeByte(CONFLICT);
    } catch (TransactionException refused) {
      // A transaction that cannot go on is over.
      if (transactions.exists()) {
        transactions.rollback();
      }
      failed(out, refused);
    } catch (RuntimeException failure) {
      failed(out, failure);
    }
  }

  private static void failed(DataOutputStream out, RuntimeException failure) throws IOException {
    out.writeByte(FAILED);
    String text = failure.toString();
    text(out, text.substring(0, Math.min(text.length(), 400)).replaceAll("[^ -~]", "?"));
  }

  private static void whole(byte[][] parts) {
    for (byte[] part : parts) {
      if (part == null) {
        throw new IllegalStateException("a record is put whole: give all of its parts");
      }
    }
  }

  private static void put(Table table, String key, Entry entry) {
    table.of(key).put(key, entry);
    if (table.global != null) {
      table.global.put(key, entry);
    }
  }

  private int change(Table table, String key, byte[][] changes, List<Tag> before, List<Tag> after)
      throws Taken {
    // Geode cannot change a part of a value in place. A read followed by a put may overwrite the
    // put of another client. A transaction reports that as a conflict; outside, a record has one
    // writer.
    Entry there = table.of(key).get(key);
    if (there == null) {
      return NO;
    }
    byte[][] parts = there.parts.clone();
    int changed = 0;
    for (int at = 0; at < parts.length; at++) {
      if (changes[at] != null) {
        parts[at] = changes[at];
        changed |= 1 << at;
      }
    }
    Entry next = new Entry(parts, changed);
    tagged(table, key, before, after, () -> {
      if (next.changed != 0) {
        table.of(key).put(key, next);
      }
    });
    return YES;
  }

  private static int delete(Table table, String key, List<Tag> before) {
    try {
      // What `remove` returns says nothing where another server holds the record.
      table.of(key).destroy(key);
    } catch (EntryNotFoundException none) {
      return NO;
    }
    if (table.global != null) {
      table.global.remove(key);
    }
    for (Tag tag : before) {
      untag(table, key, tag);
    }
    return YES;
  }

  private void find(DataOutputStream out, Table table, Tag tag, int wanted) throws IOException {
    String key = region(table, tag).get(tag.value);
    Entry entry = key == null ? null : table.of(key).get(key);
    if (entry == null) {
      out.writeByte(NO);
      return;
    }
    out.writeByte(YES);
    text(out, key);
    writeParts(out, entry, wanted);
  }

  private static Region<String, String> region(Table table, Tag tag) {
    if (tag.number >= table.tags.size()) {
      throw new IllegalArgumentException("table " + table.name + " has no tag " + tag.number);
    }
    return table.tags.get(tag.number);
  }

  private static boolean isUnique(Table table, Tag tag) {
    return table.rules.charAt(tag.number) == 'u';
  }

  /** Claims new tags, writes, and gives old tags up. Claims go back if one of them is taken. */
  private void tagged(Table table, String key, List<Tag> before, List<Tag> after, Runnable write)
      throws Taken {
    List<Tag> claimed = new ArrayList<>();
    for (Tag tag : after) {
      if (before.contains(tag)) {
        continue;
      }
      Region<String, String> region = region(table, tag);
      if (!isUnique(table, tag)) {
        region.put(tag.value + '\0' + key, key);
        claimed.add(tag);
        continue;
      }
      String holder = region.putIfAbsent(tag.value, key);
      if (holder != null && !holder.equals(key)) {
        for (Tag mine : claimed) {
          untag(table, key, mine);
        }
        throw new Taken(tag.number, holder);
      }
      if (holder == null) {
        claimed.add(tag);
      }
    }
    write.run();
    for (Tag tag : before) {
      if (!after.contains(tag)) {
        untag(table, key, tag);
      }
    }
  }

  private static void untag(Table table, String key, Tag tag) {
    Region<String, String> region = region(table, tag);
    if (isUnique(table, tag)) {
      region.remove(tag.value, key);
    } else {
      region.remove(tag.value + '\0' + key);
    }
  }

  private Table table(DataInputStream in) throws IOException {
    int number = in.readUnsignedByte();
    if (number >= tables.size()) {
      throw new IllegalArgumentException("table " + number);
    }
    return tables.get(number);
  }

  /** Bytes as a string with a character for each: what Geode's keys are best at. */
  private static String text(DataInputStream in) throws IOException {
    byte[] bytes = new byte[in.readUnsignedShort()];
    in.readFully(bytes);
    return new String(bytes, StandardCharsets.ISO_8859_1);
  }

  private static void text(DataOutputStream out, String text) throws IOException {
    byte[] bytes = text.getBytes(StandardCharsets.ISO_8859_1);
    out.writeShort(bytes.length);
    out.write(bytes);
  }

  private static Tag tag(DataInputStream in) throws IOException {
    int number = in.readUnsignedByte();
    return new Tag(number, text(in));
  }

  private static List<Tag> tags(DataInputStream in) throws IOException {
    int count = in.readUnsignedByte();
    List<Tag> tags = new ArrayList<>(count);
    for (int at = 0; at < count; at++) {
      tags.add(tag(in));
    }
    return tags;
  }

  private static void readParts(DataInputStream in, byte[][] parts) throws IOException {
    int count = in.readUnsignedByte();
    for (int at = 0; at < count; at++) {
      int part = in.readUnsignedByte();
      int length = in.readInt();
      if (part >= parts.length || length < 0 || length > FRAME_BYTES_MAX) {
        throw new IllegalArgumentException("part " + part + " of " + length + " bytes");
      }
      parts[part] = new byte[length];
      in.readFully(parts[part]);
    }
  }

  private static void parts(DataOutputStream out, Entry entry, int wanted) throws IOException {
    if (entry == null) {
      out.writeByte(NO);
      return;
    }
    out.writeByte(YES);
    writeParts(out, entry, wanted);
  }

  private static void writeParts(DataOutputStream out, Entry entry, int wanted)
      throws IOException {
    int count = Integer.bitCount(wanted & (1 << entry.parts.length) - 1);
    out.writeByte(count);
    for (int at = 0; at < entry.parts.length; at++) {
      if ((wanted & 1 << at) != 0) {
        out.writeByte(at);
        out.writeInt(entry.parts[at].length);
        out.write(entry.parts[at]);
      }
    }
  }
}
