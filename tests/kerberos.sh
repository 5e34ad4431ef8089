#!/usr/bin/env bash
# Runs tests/session/kerberos.rs in a Kerberos realm that exists on the loopback interface for as long as the tests run.
set -euo pipefail
cd "$(dirname "$0")/.."

realm=$(mktemp -d)
kdc=
trap '[[ -z $kdc ]] || kill "$kdc"; rm -rf "$realm"' EXIT
export ZK_RWLOCK_REALM=$realm KRB5_CONFIG=$realm/krb5.conf KRB5_KDC_PROFILE=$realm/kdc.conf
export KRB5CCNAME=FILE:$realm/tickets PATH=$PATH:/usr/sbin

configure() {
    cat >"$KRB5_CONFIG" <<-END
		[libdefaults]
		default_realm = LOCKS.TEST
		dns_lookup_kdc = false
		dns_lookup_realm = false
		dns_canonicalize_hostname = false
		rdns = false
		udp_preference_limit = 1
		[realms]
		LOCKS.TEST = {
		kdc = 127.0.0.1:$1
		}
	END
    cat >"$KRB5_KDC_PROFILE" <<-END
		[kdcdefaults]
		kdc_listen = 127.0.0.1:$1
		kdc_tcp_listen = 127.0.0.1:$1
		[realms]
		LOCKS.TEST = {
		database_name = $realm/principals
		key_stash_file = $realm/stash
		acl_file = $realm/acl
		}
	END
}

configure 1
kdb5_util create -r LOCKS.TEST -s -P "$RANDOM$RANDOM" >/dev/null
for principal in zookeeper/localhost alice; do
    kadmin.local -q "addprinc -randkey $principal" >/dev/null
    kadmin.local -q "ktadd -k $realm/${principal%%/*}.keytab $principal" >/dev/null
done

# Tries another port if this one is in use.
for _ in {1..5}; do
    configure $((20000 + RANDOM % 10000))
    krb5kdc -n >"$realm/kdc.log" 2>&1 &
    kdc=$!
    for _ in {1..50}; do
        kinit -k -t "$realm/alice.keytab" alice 2>"$realm/kinit.log" && break 2
        kill -0 "$kdc" 2>/dev/null || break
        sleep 0.1
    done
    kill "$kdc" 2>/dev/null || true
    kdc=
done
if [[ -z $kdc ]]; then
    cat "$realm/kdc.log" "$realm/kinit.log" >&2
    exit 1
fi

export RUSTFLAGS="--cfg zk_rwlock_gssapi ${RUSTFLAGS:-}"
cargo test --target-dir target/kerberos -p zk-rwlock-tests --test session kerberos:: "$@"
