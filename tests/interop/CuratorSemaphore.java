import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * One contender for the leases of Curator's semaphore, unmodified: see {@code benches/permits.rs}.
 *
 * <p>Arguments: servers, path, number of leases, for how many milliseconds to contend, and how long to hold each time.
 */
public class CuratorSemaphore {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 30_000, 30_000, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, args[1], Integer.parseInt(args[2]));
        long lasts = Long.parseLong(args[3]) * 1_000_000L, hold = Long.parseLong(args[4]);
        for (int warm = 0; warm < 10; warm++) {
            semaphore.returnLease(semaphore.acquire());
        }
        System.out.println("ready");
        System.out.flush();
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
        StringBuilder holds = new StringBuilder();
        long end = System.nanoTime() + lasts;
        while (System.nanoTime() < end) {
            Lease lease = semaphore.acquire();
            holds.append(System.nanoTime()).append(' ');
            Thread.sleep(hold);
            holds.append(System.nanoTime()).append('\n');
            semaphore.returnLease(lease);
        }
        System.out.print(holds);
        System.out.flush();
        client.close();
    }
}
