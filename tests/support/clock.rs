//! A wall clock that a test sets for one process and its children. Use it to show that a jump of the time of day breaks
//! no lock. Timers and monotonic clocks keep their real time.
//!
//! A small shared library replaces `clock_gettime` and `gettimeofday` through `LD_PRELOAD`. The C compiler that links
//! the tests builds this library.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* By how many seconds the clock is ahead: what the file says now. */
static long ahead(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += ahead();
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int answer = real(now, zone);
    now->tv_sec += ahead();
    return answer;
}
"#;

/// A wall clock that a test sets.
pub struct Clock {
    home: TempDir,
}

impl Clock {
    /// Returns a clock that is this many seconds ahead of the machine's clock, or behind it if negative.
    pub fn ahead_by(seconds: i64) -> Clock {
        let clock = Clock { home: tempfile::tempdir().expect("the directory for temporary files is writable") };
        fs::write(clock.file("clock.c"), SHIM).expect("writable");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(clock.file("clock.so")).arg(clock.file("clock.c")).arg("-ldl");
        assert!(cc.status().expect("a C compiler").success());
        clock.set(seconds);
        clock
    }

    /// Sets the clock, also for processes that are running.
    pub fn set(&self, seconds: i64) {
        // The rename keeps a process from reading a half-written file.
        fs::write(self.file("next"), seconds.to_string()).expect("writable");
        fs::rename(self.file("next"), self.file("ahead")).expect("writable");
    }

    /// Returns the environment variables that give a process this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.file("clock.so")), ("CLOCK_AHEAD", self.file("ahead"))]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}
