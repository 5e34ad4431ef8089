import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Puts Curator's unmodified locks and semaphore through the workloads of {@code benches/compare.py}, which documents them. */
public class CuratorDriver {
    interface Lock {
        AutoCloseable acquire() throws Exception;
    }

    interface Work {
        void run(int contender) throws Exception;
    }

    static final BufferedReader ORDERS = new BufferedReader(new InputStreamReader(System.in));
    static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    static final List<CuratorFramework> SESSIONS = new ArrayList<>();
    static final String PATH = "/performance/curator-" + ProcessHandle.current().pid() + "-" + System.nanoTime();
    /**
     * The weight of a held write lock. A read lock weighs 1, and a permit a quarter of this. It is an error if the contenders
     * together hold more than this weight.
     */
    static final int ALL = 1_000_000;
    static final AtomicInteger HELD = new AtomicInteger();
    static final AtomicInteger ERRORS = new AtomicInteger();

    static Lock counted(int weight, Lock lock) {
        return () -> {
            AutoCloseable held = lock.acquire();
            if (HELD.addAndGet(weight) > ALL) {
                ERRORS.incrementAndGet();
            }
            return () -> {
                HELD.addAndGet(-weight);
                held.close();
            };
        };
    }

    static Lock lock(int contender, boolean write) {
        InterProcessReadWriteLock both = new InterProcessReadWriteLock(SESSIONS.get(contender), PATH);
        InterProcessLock lock = write ? both.writeLock() : both.readLock();
        return counted(write ? ALL : 1, () -> {
            lock.acquire();
            return lock::release;
        });
    }

    static List<Thread> start(int n, Work work) {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            int contender = i;
            threads.add(new Thread(() -> {
                try {
                    work.run(contender);
                } catch (Exception error) {
                    error.printStackTrace();
                    ERRORS.incrementAndGet();
                }
            }));
        }
        threads.forEach(Thread::start);
        return threads;
    }

    static void join(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Measures the work between two orders, and prints the figures. */
    static void measure(Work work) throws Exception {
        System.out.println("ready");
        ORDERS.readLine();
        long processor = SYSTEM.getProcessCpuTime(), start = System.nanoTime();
        work.run(0);
        long elapsed = System.nanoTime() - start;
        System.out.println(elapsed + " " + (SYSTEM.getProcessCpuTime() - processor) + " " + ERRORS.get());
        ORDERS.readLine();
    }

    public static void main(String[] args) throws Exception {
        String servers = args[0], kind = args[1];
        int n = Integer.parseInt(args[2]), each = Integer.parseInt(args[3]) / n, sessions = Integer.parseInt(args[4]);
        int warm = Integer.parseInt(args[5]), oneIn = Integer.parseInt(args[6]), hold = Integer.parseInt(args[7]);
        for (int i = 0; i <= sessions; i++) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(servers, 30_000, 15_000, new ExponentialBackoffRetry(100, 3));
            client.start();
            client.blockUntilConnected();
            SESSIONS.add(client);
        }
        Lock first = lock(0, oneIn != 0);
        for (int i = 0; i < warm; i++) {
            first.acquire().close();
        }
        boolean drain = kind.equals("drain");
        CountDownLatch go = new CountDownLatch(1), all = new CountDownLatch(n);
        if (drain || kind.equals("readers")) {
            AutoCloseable gate = lock(sessions, true).acquire();
            List<Thread> threads = start(n, i -> {
                AutoCloseable held = lock(i % sessions, drain).acquire();
                all.countDown();
                if (!drain) {
                    go.await();
                }
                held.close();
            });
            measure(x -> {
                gate.close();
                all.await();
                if (drain) {
                    join(threads);
                }
            });
            go.countDown();
            join(threads);
        } else {
            List<Thread> threads = start(n, i -> {
                CuratorFramework client = SESSIONS.get(i % sessions);
                InterProcessSemaphoreV2 permits = new InterProcessSemaphoreV2(client, PATH + "-permits", 4);
                Lock permit = counted(ALL / 4, permits::acquire), write = lock(i % sessions, true), read = lock(i % sessions, false);
                go.await();
                for (long k = 0; k < each; k++) {
                    boolean writes = oneIn != 0 && ((k * n + i) * 0x9E3779B97F4A7C15L >>> 32) % oneIn == 0;
                    AutoCloseable held = (kind.equals("permits") ? permit : writes ? write : read).acquire();
                    if (hold > 0) {
                        Thread.sleep(hold);
                    }
                    held.close();
                }
            });
            measure(x -> {
                go.countDown();
                join(threads);
            });
        }
        SESSIONS.forEach(CuratorFramework::close);
    }
}
