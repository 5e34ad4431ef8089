import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Random;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's locks, unmodified, with commands on standard input: see {@code tests/interop/main.rs}.
 *
 * <p>Arguments: servers, the lock's path, the path of the value it protects, the common log of all holds,
 * a name, the session timeout in milliseconds, and "curator" or "curator-mutex".
 */
public class CuratorPeer {
    /** One mode of a lock. */
    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;

        String node();
    }

    /** A lock whose node path can be read. */
    static final class Mutex extends InterProcessMutex implements Lock {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        @Override
        public String node() {
            return getLockPath();
        }
    }

    static Lock of(InterProcessReadWriteLock.ReadLock lock) {
        return new Lock() {
            public void acquire() throws Exception {
                lock.acquire();
            }

            public void release() throws Exception {
                lock.release();
            }

            public String node() {
                return lock.getLockPath();
            }
        };
    }

    static Lock of(InterProcessReadWriteLock.WriteLock lock) {
        return new Lock() {
            public void acquire() throws Exception {
                lock.acquire();
            }

            public void release() throws Exception {
                lock.release();
            }

            public String node() {
                return lock.getLockPath();
            }
        };
    }

    private final CuratorFramework client;
    private final Lock read;
    private final Lock write;
    private final String value;
    private final Path log;
    private final String name;

    CuratorPeer(String[] args) throws Exception {
        int timeout = Integer.parseInt(args[5]);
        client = CuratorFrameworkFactory.newClient(args[0], timeout, timeout, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
        if (args[6].equals("curator")) {
            InterProcessReadWriteLock lock = new InterProcessReadWriteLock(client, args[1]);
            read = of(lock.readLock());
            write = of(lock.writeLock());
        } else {
            write = new Mutex(client, args[1]);
            read = write;
        }
        value = args[2];
        log = Path.of(args[3]);
        name = args[4];
    }

    void say(String words) {
        System.out.println("child says " + words);
        System.out.flush();
    }

    void note(String words) throws IOException {
        Files.write(log, (words + "\n").getBytes(StandardCharsets.UTF_8), StandardOpenOption.APPEND);
    }

    long value() throws Exception {
        return Long.parseLong(new String(client.getData().forPath(value), StandardCharsets.UTF_8));
    }

    /** Holds the lock once, and reads the protected value or increments it. */
    void hold(boolean wantsToWrite, long pause) throws Exception {
        Lock lock = wantsToWrite ? write : read;
        boolean isWrite = lock == write;
        lock.acquire();
        long token = client.checkExists().forPath(lock.node()).getCzxid();
        String mode = isWrite ? "W" : "R";
        note("B " + name + " " + mode + " " + token);
        long before = value();
        Thread.sleep(pause);
        long after = value();
        if (isWrite) {
            after = before + 1;
            client.setData().forPath(value, Long.toString(after).getBytes(StandardCharsets.UTF_8));
        }
        note("E " + name + " " + mode + " " + before + " " + after);
        lock.release();
    }

    void run() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        say("ready");
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "read":
                case "write":
                    Lock lock = words[0].equals("read") ? read : write;
                    lock.acquire();
                    say("held " + lock.node());
                    break;
                case "release":
                    (words[1].equals("read") ? read : write).release();
                    say("released");
                    break;
                case "revoke":
                    Revoker.attemptRevoke(client, words[1]);
                    say("revoked");
                    break;
                case "contend":
                    Random random = new Random(Long.parseLong(words[1]));
                    long end = System.nanoTime() + Long.parseLong(words[2]) * 1_000_000L;
                    for (int holds = 0; System.nanoTime() < end || holds < 3; holds++) {
                        hold(random.nextInt(3) == 0, random.nextInt(4));
                    }
                    say("done");
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        client.close();
    }

    public static void main(String[] args) throws Exception {
        new CuratorPeer(args).run();
    }
}
