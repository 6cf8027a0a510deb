# Part of bin/launch: makes the environment $venv for $lane, with $groups. What goes wrong
# is one line and exit code 2; the next call goes on. uv's own words are in $log.

# Where a machine has no fitting Python, uv brings one. Which packages and Pythons there
# are to choose from is uv's and pip's settings' business, what is installed is not.
unset UV_CONSTRAINT UV_OVERRIDE UV_EXCLUDE UV_EXCLUDE_NEWER UV_NO_BINARY UV_NO_BUILD \
  UV_NO_VERIFY_HASHES UV_SYSTEM_PYTHON UV_COMPILE_BYTECODE UV_PROJECT_ENVIRONMENT \
  UV_PYTHON UV_NO_DEFAULT_GROUPS UV_TORCH_BACKEND

# The machine's certificates, which may have one of its network's; uv has its own, too.
for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
  [ ! -s $certificates ] || export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
done

check_platform() {
  case "$(uname -s) $(uname -m) $(getconf LONG_BIT 2>/dev/null || echo 64)" in
    "Linux x86_64 64") ;;
    # TensorFlow 2.14's wheels for these have nothing in them.
    "Linux aarch64 64" | "Darwin arm64 64")
      [ $lane = today ] || stop "TFF_REG_LANE=$lane needs Linux on x86-64, and this is" \
        "$(uname -s) on $(uname -m); leave it out." ;;
    *) stop "this is $(uname -s) on $(uname -m); TensorFlow $(lane_tensorflow) has packages" \
        "for 64-bit Linux on x86-64 and aarch64 and for macOS on arm64 (Windows: use WSL 2)." ;;
  esac
  [ "$(uname -s)" = Linux ] || return 0
  case "$(getconf GNU_LIBC_VERSION 2>/dev/null)" in
    "glibc 2."[4-9]* | "glibc 2.3"[1-9]*) ;;
    *) stop "TensorFlow needs glibc 2.31 or newer (Debian 11, Ubuntu 20.04); here is" \
        "$(getconf GNU_LIBC_VERSION 2>/dev/null || echo another C library, perhaps musl)." ;;
  esac
}

lane_tensorflow() { [ $lane = today ] && echo 2.21 || echo 2.14; }

# step WHAT COMMAND...: runs a command with its output in the log; stops if it fails.
step() {
  what=$1
  shift
  echo "\$ $*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null &
  pid=$!
  trap 'kill $pid 2>/dev/null; say "interrupted; the next call goes on."; exit 130' INT TERM
  seconds=0
  while [ -t 2 ] && kill -0 $pid 2>/dev/null; do
    printf '\r\033[Ktff_reg: %s, %s s' "$what" $seconds >&2
    sleep 1
    seconds=$((seconds + 1))
  done
  [ ! -t 2 ] || printf '\r\033[K' >&2
  wait $pid && trap - INT TERM || explain
}

explain() {
  said=$(sed -n 'H; /^\$ /h; ${g;p;}' "$log")
  see="uv's words are in $log."
  case $(echo "$said" | tr '[:upper:]' '[:lower:]') in
    *"no space left"* | *"disk quota"*)
      stop "the disk is full; $venv needs 4 GB, and uv's cache as much where it is on" \
        "another disk. $see" ;;
    *"hash mismatch"*)
      stop "a downloaded file is not the one that the lock names (its hash differs); try" \
        "again, or ask whoever runs your package index. $see" ;;
    *"no interpreter found"* | *"python-build-standalone"* | *"no download found"*)
      stop "no Python $versions is here, and uv could not download one; install one, or" \
        "name it in TFF_REG_PYTHON. $see" ;;
    *"dns error"* | *"error sending request"* | *"failed to fetch"* | *"timed out"* | \
      *"connect"*"error"* | *"connection "* | *"network is unreachable"* | *"certificate"*)
      stop "the packages cannot be downloaded; the first call needs the network (PyPI, or" \
        "the mirror that uv or pip is set to). $see" ;;
  esac
  line=$(echo "$said" | grep -i -E '^ *(error|×)' | tail -1)
  stop "uv failed: ${line:-$(echo "$said" | tail -1)} $see"
}

# find_uv: uv from PATH if it works, else the one that the lock names, fetched once.
find_uv() {
  uv=$(command -v uv) && "$uv" --version >>"$log" 2>&1 && return
  uv=$root/.venv-uv/uv
  [ -x "$uv" ] && return
  for python in python3 python; do
    command -v $python >/dev/null || continue
    step "fetching uv" $python -I "$root/bin/fetch_uv.py" "$root/uv.lock" "$uv"
    return
  done
  stop "neither uv nor a Python to fetch it with is here; install one of them" \
    "(https://docs.astral.sh/uv)."
}

# install LANE'S GROUPS: the packages of the lock, each with its hash, and no others.
install() {
  set -- --no-default-groups --group=tff --group=$lane \
    $(for group in $groups; do echo "--group=$group"; done)
  (cd "$root" && "$uv" export --quiet --frozen --no-annotate "$@") >"$venv/requirements.txt" \
    2>>"$log" || explain
  requirements=
  [ "$how" = sync ] || requirements="--no-deps -r"
  cd "$root" # Whose pyproject.toml says what TFF's declarations are replaced by.
  step "installing" "$uv" pip ${how%% *} --quiet --python="$venv/bin/python" --require-hashes \
    --index-strategy=unsafe-best-match $requirements "$venv/requirements.txt"
  # TFF's Python files serve on every platform; the wheel is for this one by its tag.
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    "$uv" export --quiet --frozen --no-annotate --only-group=tff |
      sed 's/^\(tensorflow-federated[^;]*\);[^\\]*/\1/' >"$venv/tff.txt"
    step "installing TFF" "$uv" pip install --quiet --python="$venv/bin/python" --no-deps \
      --require-hashes --python-platform=x86_64-manylinux_2_31 -r "$venv/tff.txt"
  fi
  cd "$OLDPWD"
  for site in "$venv"/lib/python3*/site-packages; do cp "$root/tff_reg.pth" "$site"; done
}

make_environment() {
  check_platform
  [ ! -e "$venv" ] || [ -e "$venv.lock" ] || {
    kept=$venv.previous-$(date +%s)
    mv "$venv" "$kept" || stop "$venv was not made by this command; move it away."
    say "${venv##*/} was not made by this command; it is kept as $kept"
  }
  { : >>"$venv.lock" && : >>"$venv.adding"; } 2>/dev/null ||
    stop "cannot write to $root; use a copy of the repository that is yours."
  exec 8<"$venv.adding" 9<"$venv.lock"
  lock -x 8
  lock -s 9
  ! has "$groups" || { exec 8<&-; return; } # Another command has made it.
  # What is there of this lock stays; of another nothing does, and nobody may be in it.
  how=install
  has "" || { how=sync; lock -x 9; }
  log=$venv.log
  : >"$log" || stop "cannot write to $log."
  find_uv
  [ "$(df -Pk "$root" | awk 'NR == 2 { print $4 }')" -gt 4500000 ] ||
    stop "$venv needs 4.5 GB of disk; make room, or make it a link to a folder on a larger" \
      "disk."
  cache=$("$uv" cache dir 2>/dev/null)
  { mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null ||
    export UV_CACHE_DIR="$root/.venv-uv/cache"
  say "installing ${venv##*/}, once (1 GB to download, 3 GB on the disk) ..."
  started=$(date +%s)
  if [ "$how" = sync ]; then
    have=
    rm -f "$venv/ready"
    step "making ${venv##*/}" "$uv" venv --quiet --clear --no-project \
      --python="${TFF_REG_PYTHON:-$versions}" "$venv"
  fi
  install
  groups="$have $groups"
  cp "$root/uv.lock" "$venv/uv.lock" &&
    printf '%s\n' "$root" "${TFF_REG_PYTHON:-}" "$(echo $groups)" >"$venv/ready.new" &&
    mv "$venv/ready.new" "$venv/ready" || stop "cannot write to $venv."
  say "${venv##*/} is ready ($(($(date +%s) - started)) s)"
  exec 8<&-
  lock -s 9
}
