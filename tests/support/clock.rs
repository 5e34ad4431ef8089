//! A time of day of its own for a process, and for all that it starts; timers and durations stay as they are.
//!
//! A small library, which stands before the C library's functions. It is built by the compiler that links the tests.

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

/// A clock that a test sets.
pub struct Clock {
    home: TempDir,
}

impl Clock {
    /// A clock that is so many seconds ahead of this machine's, or behind it.
    pub fn ahead_by(seconds: i64) -> Clock {
        let clock = Clock { home: tempfile::tempdir().expect("the directory for temporary files is writable") };
        fs::write(clock.file("clock.c"), SHIM).expect("writable");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(clock.file("clock.so")).arg(clock.file("clock.c")).arg("-ldl");
        assert!(cc.status().expect("a C compiler").success());
        clock.set(seconds);
        clock
    }

    /// Sets the clock, also for processes that run already.
    pub fn set(&self, seconds: i64) {
        // Never half written.
        fs::write(self.file("next"), seconds.to_string()).expect("writable");
        fs::rename(self.file("next"), self.file("ahead")).expect("writable");
    }

    /// The environment of processes that have this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.file("clock.so")), ("CLOCK_AHEAD", self.file("ahead"))]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}
