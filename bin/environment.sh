# Part of bin/launch: makes the environment $venv for $lane with $groups, or adds $groups to
# the one that is there. What goes wrong is one line and exit code 2, and leaves nothing
# half-made; the next call goes on. What uv said last is in $log.
#
# A new environment is made in $venv.new and then put in its place, once nobody uses the
# old one. It has no absolute paths of its own: the repository may be moved or copied.
log=$venv.log
name=${venv##*/}
cache=$root
pid=
downloads=1 needs=3 # GB.
case $groups in *gpu*) downloads=4 needs=9 ;; esac

# Which packages and Pythons there are to choose from is the business of uv's settings, what
# is installed is not.
unset UV_BUILD_CONSTRAINT UV_COMPILE_BYTECODE UV_CONSTRAINT UV_EXCLUDE UV_EXCLUDE_NEWER \
  UV_FROZEN UV_ISOLATED UV_LOCKED UV_NO_BINARY UV_NO_BUILD UV_NO_BUILD_ISOLATION \
  UV_NO_DEFAULT_GROUPS UV_NO_DEV UV_NO_GROUP UV_NO_VERIFY_HASHES UV_OVERRIDE UV_PRERELEASE \
  UV_PROJECT UV_PROJECT_ENVIRONMENT UV_PYTHON UV_RESOLUTION UV_SYSTEM_PYTHON \
  UV_TORCH_BACKEND UV_WORKING_DIR

# The machine's certificates, which may have one of its network's; uv has its own, too.
for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
  [ ! -s $certificates ] || export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
done

make_environment() {
  check_platform
  touch "$venv.lock" "$venv.installing" "$log" 2>/dev/null ||
    stop "cannot write to $root; use a copy of the repository that is yours."
  # Who installs has the lock 8.
  exec 8<>"$venv.installing" 9<>"$venv.lock"
  hold -x 8 "another command, which makes $name"
  hold -s 9 "another command, which puts $name in its place"
  if ! has "$groups"; then # Otherwise another command has made it meanwhile.
    exec 7>&2
    trap interrupted INT TERM HUP
    started=$(date +%s)
    if has ""; then add_groups; else make_new; fi
    say "$name is ready ($(($(date +%s) - started)) s)"
    trap - INT TERM HUP
    exec 7>&-
  fi
  exec 8<&-
}

add_groups() {
  say "adding to $name the packages for $(echo $groups) ..."
  find_uv
  # If this is interrupted, the environment is made anew.
  touch "$venv/adding" || fail "cannot write to $venv."
  install "$venv"
  groups="$have $groups"
  finish "$venv"
  rm "$venv/adding"
}

make_new() {
  say "installing $name, once ($downloads GB to download, $needs GB on the disk) ..."
  find_uv
  find_python
  install "$venv.new"
  finish "$venv.new"
  put_in_place
}

check_platform() {
  case "$(uname -s) $(uname -m) $(getconf LONG_BIT 2>/dev/null || echo 64)" in
    "Linux x86_64 64") ;;
    # TensorFlow 2.14's wheels for these have nothing in them.
    "Linux aarch64 64" | "Darwin arm64 64")
      [ $lane = today ] || stop "TFF_REG_LANE=$lane needs Linux on x86-64, and this is" \
        "$(uname -s) on $(uname -m); leave it out." ;;
    *) stop "this is $(uname -s) on $(uname -m), $(getconf LONG_BIT) bits; TensorFlow has" \
        "packages for 64-bit Linux on x86-64 and aarch64 and for macOS on arm64" \
        "(Windows: use WSL 2)." ;;
  esac
  [ "$(uname -s)" = Linux ] && command -v getconf >/dev/null || return 0
  case "$(getconf GNU_LIBC_VERSION 2>/dev/null)" in
    "glibc 2.3"[1-9]* | "glibc 2."[4-9][0-9]*) ;;
    *) stop "TensorFlow needs glibc 2.31 or newer (Debian 11, Ubuntu 20.04); here is" \
        "$(getconf GNU_LIBC_VERSION 2>/dev/null || echo another C library, perhaps musl)." ;;
  esac
}

# find_uv: uv from PATH if it works and knows our lock, else the one that the lock names,
# fetched once.
find_uv() {
  for uv in "$(command -v uv)" "$root/.venv-uv/uv" ""; do
    case $("$uv" --version 2>/dev/null) in
      "uv 0.1"[1-9].* | "uv 0."[2-9][0-9].* | "uv "[1-9]*) break ;;
    esac
  done
  [ -n "$uv" ] || fetch_uv
  cache=$("$uv" cache dir 2>/dev/null)
  if ! { mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null; then
    cache=$root/.venv-uv/cache
    export UV_CACHE_DIR="$cache" UV_PYTHON_INSTALL_DIR="$root/.venv-uv/python"
  fi
  # uv does not read pip's settings, which may name the one mirror that can be reached.
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_INDEX:-}" ]; then
    index=${PIP_INDEX_URL:-$(python3 -m pip config list 2>/dev/null |
      sed -n "s/^[a-z]*\.index-url='\(.*\)'$/\1/p" | tail -1)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
  fi
}

fetch_uv() {
  uv=$root/.venv-uv/uv
  for python in "${TFF_REG_PYTHON:-python3}" python3 python; do
    "$python" -c "import sys; sys.exit(sys.version_info < (3, 6))" 2>/dev/null || continue
    step "fetching uv" "$python" -I bin/fetch_uv.py uv.lock "$uv"
    return
  done
  stop "neither uv nor a Python to fetch it with is here; install one of them" \
    "(https://docs.astral.sh/uv)."
}

find_python() {
  case $lane in
    today) choice=">=3.10,<3.14" known="3.10 to 3.13 (3.14 can be tried: TFF_REG_PYTHON=3.14)" ;;
    tff_pins) choice=">=3.10,<3.12" known="3.10 or 3.11" ;;
  esac
  case "$lane ${TFF_REG_PYTHON:-}" in
    *" "*/*) "$TFF_REG_PYTHON" -c "" 2>/dev/null ||
      fail "TFF_REG_PYTHON=$TFF_REG_PYTHON is not a Python that runs; it must be $known." ;;
    "today 3.1"[0-4]* | "tff_pins 3.1"[01]* | *" "[!0-9]* | *" ") ;;
    *) fail "TFF_REG_PYTHON=$TFF_REG_PYTHON: it must be $known." ;;
  esac
  step "looking for a Python" "$uv" venv --quiet --clear --relocatable --no-project \
    --python="${TFF_REG_PYTHON:-cpython$choice}" "$venv.new"
  version=$(sed -n 's/^version_info = //p' "$venv.new/pyvenv.cfg")
  case "$lane $version" in
    "today 3.1"[0-4]* | "tff_pins 3.1"[01]*) ;;
    *) fail "TFF_REG_PYTHON=${TFF_REG_PYTHON:-} is Python $version; it must be $known." ;;
  esac
  # Not /usr/bin/python3, which another version may be tomorrow.
  ln -sf "$(readlink -f "$venv.new/bin/python")" "$venv.new/bin/python"
}

# install FOLDER: the packages of the lock, each with its hash, and no others.
install() {
  step "reading the lock" "$uv" export --quiet --frozen --no-annotate --no-default-groups \
    --group=tff --group=$lane $(for group in $groups; do echo "--group=$group"; done) \
    --output-file="$1/requirements.txt"
  add "$1" -r "$1/requirements.txt"
  # What the user wants beside: a package with a method, for instance. The lock stays.
  [ ! -s "$root/requirements-local.txt" ] ||
    step "installing requirements-local.txt" "$uv" pip install --quiet \
      --python="$1/bin/python" --constraint="$1/requirements.txt" -r requirements-local.txt
  # TFF's Python files serve on every platform; the wheel is for this one by its tag.
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    sed -n '/^tensorflow-federated==/,/[^\\]$/{s/ ;[^\\]*//;p;}' "$1/requirements.txt" >"$1/tff.txt"
    add "$1" --python-platform=x86_64-manylinux_2_31 -r "$1/tff.txt"
  fi
}

add() {
  folder=$1
  shift
  step "installing" "$uv" pip install --quiet --python="$folder/bin/python" --no-deps \
    --require-hashes --index-strategy=unsafe-best-match "$@"
}

# finish FOLDER: what follows the installation of packages; $venv/ready is written last.
finish() {
  for site in "$1"/lib/python3*/site-packages; do
    # The repository, so that this Python finds the library by itself, too.
    { echo ../../../.. && cat "$root/tff_reg.pth"; } >"$site/tff_reg.pth" &&
      printf '%s\n' "$sum" "${TFF_REG_PYTHON:-}" "$(echo $groups)" >"$1/ready.new" &&
      mv "$1/ready.new" "$1/ready"
  done 2>>"$log" || fail "cannot write to $1."
}

put_in_place() {
  hold -x 9 "commands that still use the $name of before"
  old=$venv.old
  if [ -e "$venv" ] && [ ! -e "$venv/ready" ]; then
    old=$venv.previous-$(date +%s)
    say "$name was not made by this command; it is kept as $old"
  fi
  rm -rf "$venv.old"
  { [ ! -e "$venv" ] || mv "$venv" "$old"; } && mv "$venv.new" "$venv" ||
    fail "cannot put $venv.new in the place of $venv."
  hold -s 9 ""
  rm -rf "$venv.old"
}

# step WHAT COMMAND...: runs a command in the repository, with what it says in the log;
# stops if it fails.
step() {
  what=$1
  shift
  { echo "\$ $*" >"$log"; } 2>/dev/null
  (cd "$root" && exec "$@") >>"$log" 2>&1 </dev/null 7>&- &
  pid=$!
  seconds=0
  while [ -t 2 ] && kill -0 $pid 2>/dev/null; do
    clear_line
    printf 'tff_reg: %s, %s s' "$what" $seconds >&2
    sleep 1
    seconds=$((seconds + 1))
  done
  clear_line
  # The shell's own words about a uv that crashed are dropped.
  { wait $pid; } 2>/dev/null || explain
  pid=
}

clear_line() { [ ! -t 2 ] || printf '\r\033[K' >&2; }

interrupted() {
  exec 2>&7 # It may come in the middle of `wait`.
  clear_line
  [ -z "$pid" ] || { kill $pid; wait $pid; } 2>/dev/null
  rm -rf "$venv.new" 2>/dev/null
  say "interrupted; the next call goes on."
  exit 130
}

fail() {
  rm -rf "$venv.new" 2>/dev/null
  stop "$*"
}

# explain: stops with a sentence for what the last step said.
explain() {
  said=$(sed 1d "$log" | tr '[:upper:]' '[:lower:]')
  # On a full disk there is no room for uv's words either.
  ! is_full "$root" && ! is_full "$cache" || said="no space left"
  see="See $log."
  case $said in
    *"no space left"* | *"disk quota"*)
      fail "the disk is full; $name needs $needs GB, and uv's cache ($cache) as much where it" \
        "is on another disk. $see" ;;
    *"hash mismatch"*)
      fail "a downloaded file is another one than it should be (its hash differs); try again," \
        "or ask whoever runs your package index. $see" ;;
  esac
  [ "$what" != "looking for a Python" ] ||
    fail "no Python ${TFF_REG_PYTHON:-${known%% (*}} is here, and uv could not download one;" \
      "install one, or name another in TFF_REG_PYTHON by its whole path or version, $known. $see"
  case $said in
    *"failed to fetch"* | *"failed to download"* | *"request failed"* | *"no version of"* | \
      *"error sending request"* | *"not found in the"*)
      fail "the packages cannot be downloaded; the first call needs the network (PyPI, or" \
        "the mirror that uv or pip is set to). $see" ;;
  esac
  line=$(grep -i -E '^ *(error|×)' "$log" | tail -1)
  fail "uv failed: ${line:-$(tail -1 "$log")}. $see"
}

is_full() {
  [ "$(df -Pk "$1" | awk 'NR == 2 { print $4 }')" -lt 50000 ]
} 2>/dev/null
