#!/usr/bin/env bash
# Runs the SQL of docs/fencing.md on a PostgreSQL and a MariaDB that are started for it, with sockets in a temporary
# directory. It checks that a holder can write again, and that an earlier holder never can, also if both write at the
# same time and one statement arrives while the other transaction is open.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')

home=$(mktemp -d)
chmod 755 "$home"
end() {
    [[ ! -e $home/pg/data/postmaster.pid ]] || as postgres pg_ctl -D "$home/pg/data" -m immediate stop >/dev/null
    [[ ! -e $home/my/pid ]] || mariadb-admin --no-defaults -S "$home/my/socket" -u root shutdown
    exec 7>&-
    wait
    rm -rf "$home"
}
trap end EXIT

# Prints block number $2, counted from 1, of those that begin with ```sql $1.
block() {
    awk -v opening="\`\`\`sql $1" -v wanted="$2" '
        $0 == opening { inside = ++found == wanted; next }
        /^```/ { inside = 0 }
        inside' docs/fencing.md
}
set_up() { block "$1" "$2" | awk 'BEGIN { RS = ";" } !/\$|\?/ && NF { print $0 ";" }'; }
# Prints statement number $3 of a holder in that block.
statement() { block "$1" "$2" | sed '/^--/d' | awk -v wanted="$3" 'BEGIN { RS = ";" } /\$|\?/ && ++found == wanted'; }

checks=0
is() {
    if [[ $2 != "$3" ]]; then
        echo "databases: $1: $2 and not $3" >&2
        exit 1
    fi
    checks=$((checks + 1))
}
until_true() {
    for _ in {1..100}; do
        "$@" && return
        # MariaDB refreshes its list of transactions only after 0.1 s without a query for it.
        sleep 0.2
    done
    echo "databases: never came true: $*" >&2
    exit 1
}
# A server that must not run as root runs as another user.
as() { if [[ $(id -u) -eq 0 ]]; then runuser -u "$1" -- "${@:2}"; else "${@:2}"; fi; }
own() { mkdir "$1"; if [[ $(id -u) -eq 0 ]]; then chown "$2" "$1"; fi; }

# An earlier holder's update arrives while a later holder's transaction is open, and then the other way round. $1: the
# command of a session that reads statements. $2: the command that prints how many statements wait. $3 and $4: the
# holders' updates by token.
race() {
    local session=$1 waiting=$2 update=$3 order late
    for order in '5 4 0' '6 7 1'; do
        read -r first second changed <<<"$order"
        mkfifo "$home/first"
        $session <"$home/first" >"$home/first.out" 2>&1 &
        exec 7>"$home/first"
        { echo 'BEGIN;'; $update "$first"; } >&7
        until_true grep -q 'rows 1' "$home/first.out"
        { $update "$second"; } | $session >"$home/second.out" 2>&1 &
        late=$!
        until_true $waiting
        echo 'COMMIT;' >&7
        exec 7>&-
        wait "$late"
        is "after $first, $second" "$(grep -o 'rows [0-9]*' "$home/second.out")" "rows $changed"
        rm "$home/first"
    done
}

own "$home/pg" postgres
as postgres initdb -D "$home/pg/data" -A trust -U holder >"$home/log"
as postgres postgres -D "$home/pg/data" -c listen_addresses= -c unix_socket_directories="$home/pg" >"$home/pg.log" 2>&1 &
psql() { command psql -X -q -t -A -h "$home/pg" -U holder -d postgres "$@"; }
until_true psql -c 'SELECT 1' >/dev/null 2>&1
psql_waits() { [[ $(psql -c 'SELECT count(*) FROM pg_locks WHERE NOT granted') -gt 0 ]]; }
# Prints how many rows a statement of block $1 changed, for the tokens and values after its number $2.
psql_rows() {
    local types='bigint'
    [[ $1 == 2 ]] && types='bigint, text, bigint'
    printf 'PREPARE of_holder(%s) AS %s;\n\\set QUIET off\nEXECUTE of_holder(%s);\n\\set QUIET on\nDEALLOCATE of_holder;\n' \
        "$types" "$(statement postgres "$1" "$2")" "$3"
}
psql_session() { psql | sed -u -E 's/^(UPDATE|INSERT 0) ([0-9]+)$/rows \2/'; }
rows_of() { psql_session | grep -o 'rows [0-9]*'; }
psql_update() { psql_rows 1 1 "$1"; }
set_up postgres 1 | psql
set_up postgres 2 | psql
for try in '1 1' '1 1' '3 1' '1 0' '3 1'; do
    read -r token rows <<<"$try"
    is "PostgreSQL, token $token" "$(psql_update "$token" | rows_of)" "rows $rows"
done
race psql_session psql_waits psql_update
is 'PostgreSQL, no such row' "$(psql_rows 2 1 "1, 'none', 7" | rows_of)" 'rows 0'
for try in '2 1 1' '2 1 1' '1 3 1' '1 1 0' '2 1 0' '2 3 1'; do
    read -r number token rows <<<"$try"
    is "PostgreSQL, part, token $token" "$(psql_rows 2 "$number" "$token, 'result', 7" | rows_of)" "rows $rows"
done
# The use in a shell: an error, and no change, if a later holder has written.
{ block psql 1; echo 'CREATE TABLE migrated ();'; } >"$home/migrate.sql"
chmod 644 "$home/migrate.sql"
migrate() { psql -1 -v ON_ERROR_STOP=1 -v token="$1" -f "$home/migrate.sql" >/dev/null 2>&1 && echo done || echo refused; }
is 'psql, an earlier token' "$(migrate 2)" refused
is 'psql, what it changed' "$(psql -c "SELECT to_regclass('migrated')")" ''
is 'psql, a later token' "$(migrate 8)" 'done'

own "$home/my" mysql
as mysql mariadb-install-db --no-defaults --datadir="$home/my/data" --auth-root-authentication-method=normal >>"$home/log" 2>&1
as mysql mariadbd --no-defaults --datadir="$home/my/data" --socket="$home/my/socket" --pid-file="$home/my/pid" \
    --skip-networking --skip-log-bin >"$home/my.log" 2>&1 &
mysql() { command mariadb --no-defaults -N -B -S "$home/my/socket" -u root test "$@"; }
until_true mysql -e 'SELECT 1' >/dev/null 2>&1
mysql_session() { mysql --unbuffered; }
mysql_waits() {
    [[ $(mysql -e "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") -gt 0 ]]
}
# As psql_rows. The values are those of the question marks, in order.
mysql_rows() {
    local number names=()
    local IFS=,
    read -ra values <<<"$3"
    for number in "${!values[@]}"; do
        echo "SET @v$number = ${values[number]};"
        names+=("@v$number")
    done
    echo "EXECUTE IMMEDIATE '$(statement mysql "$1" "$2" | sed "s/'/''/g")' USING ${names[*]};"
    echo "SELECT concat('rows ', row_count());"
}
mysql_update() { mysql_rows 1 1 "$1,$1"; }
set_up mysql 1 | mysql
set_up mysql 2 | mysql
for try in '1 1' '1 1' '3 1' '1 0' '3 1'; do
    read -r token rows <<<"$try"
    is "MariaDB, token $token" "$(mysql_update "$token" | mysql)" "rows $rows"
done
race mysql_session mysql_waits mysql_update
is 'MariaDB, no such row' "$(mysql_rows 2 2 "'none',1,7,1" | mysql)" 'rows 0'
is 'MariaDB, a row is made' "$(mysql_rows 2 1 7 | mysql)" 'rows 1'
is 'MariaDB, a row is not made twice' "$(mysql_rows 2 1 7 | mysql)" 'rows 0'
for try in '1 1' '1 1' '3 1' '1 0' '3 1'; do
    read -r token rows <<<"$try"
    is "MariaDB, part, token $token" "$(mysql_rows 2 2 "'result',$token,7,$token" | mysql)" "rows $rows"
done

echo "databases: $checks checks on $(command psql --version) and $(mariadbd --version | grep -o '[0-9.]*-MariaDB' | head -1)"
