import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * A holder or the waiters of Curator's lock, with commands on standard input: see {@code tests/nemesis/peer.rs}.
 *
 * <p>Arguments: the session timeout and the pause between two questions, both in milliseconds. All reported times are
 * {@code System.nanoTime()}, the machine's monotonic clock.
 */
public class CuratorNemesis {
    private final int timeout;
    private final long pause;

    CuratorNemesis(int timeout, long pause) {
        this.timeout = timeout;
        this.pause = pause;
    }

    CuratorFramework open(String servers) throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(servers, timeout, timeout, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
        return client;
    }

    static synchronized void say(String words) {
        System.out.println("child says " + words);
        System.out.flush();
    }

    /** One hold, and the times of the answers of its API. Zero means never. */
    final class Hold extends Thread {
        private final CuratorFramework client;
        private final InterProcessReadWriteLock.WriteLock lock;
        private final AtomicLong signal = new AtomicLong();
        private final AtomicLong lost = new AtomicLong();
        private volatile boolean over;
        private long heldUntil;
        private long deniedFrom;
        private String resumed = "0 -";

        Hold(String servers, String path) throws Exception {
            client = open(servers);
            lock = new InterProcessReadWriteLock(client, path).writeLock();
            client.getConnectionStateListenable().addListener((framework, state) -> {
                long now = System.nanoTime();
                if (state == ConnectionState.SUSPENDED || state == ConnectionState.LOST) {
                    signal.compareAndSet(0, now);
                }
                if (state == ConnectionState.LOST) {
                    lost.compareAndSet(0, now);
                }
            });
        }

        @Override
        public void run() {
            try {
                lock.acquire();
                say("held " + lock.getLockPath());
                long last = System.nanoTime();
                while (!over) {
                    long asked = System.nanoTime();
                    boolean held = lock.isAcquiredInThisProcess();
                    if (asked - last > timeout * 1_000_000L) {
                        resumed = asked + (held ? " held" : " lost");
                    }
                    last = asked;
                    if (held) {
                        heldUntil = asked;
                    } else if (deniedFrom == 0) {
                        deniedFrom = asked;
                    }
                    Thread.sleep(pause);
                }
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }

        void end() throws Exception {
            over = true;
            join();
            say("ended " + signal + " " + lost + " " + heldUntil + " " + deniedFrom + " " + resumed);
            client.close();
        }
    }

    void run() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Hold hold = null;
        CuratorFramework waiting = null;
        say("ready");
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "hold":
                    hold = new Hold(words[1], words[2]);
                    hold.start();
                    break;
                case "end":
                    hold.end();
                    break;
                case "wait":
                    waiting = waiting == null ? open(words[1]) : waiting;
                    InterProcessReadWriteLock lock = new InterProcessReadWriteLock(waiting, words[2]);
                    new Thread(() -> {
                        try {
                            lock.writeLock().acquire();
                            say("granted " + words[2] + " " + System.nanoTime());
                        } catch (Exception e) {
                            throw new IllegalStateException(e);
                        }
                    }).start();
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        System.exit(0);
    }

    public static void main(String[] args) throws Exception {
        new CuratorNemesis(Integer.parseInt(args[0]), Long.parseLong(args[1])).run();
    }
}
