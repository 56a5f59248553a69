#!/bin/bash
# Run a command under ANOTHER KERNEL with this machine's own root file system (Python, bwrap, the work tree: all there).
#   vm-run.sh 6.1    [-a "extra kernel args"] -- CMD...      Debian 12 kernel,     Landlock ABI 2   (qemu TCG, ~9 s + 15x slower CPU)
#   vm-run.sh 6.12   [-a "extra kernel args"] -- CMD...      bookworm-security,    Landlock ABI 6   (qemu TCG, ~9 s + 15x slower CPU)
#   vm-run.sh uml    [-a ...]                 -- CMD...      User-mode Linux 6.1,  NO Landlock      (~2 s, native CPU speed)
#   e.g. vm-run.sh 6.1 -a "lsm=yama,apparmor" -- python3 -m pytest tests/linux     <- Landlock built in but not enabled
# The root is read-only; /tmp, /run, /dev/shm are fresh tmpfs; $VMOUT (a host folder, default a temp one) is writable.
# The exit status is the command's. apt: qemu-system-x86 busybox-static cpio xz-utils | user-mode-linux
set -euo pipefail
which=$1; shift; extra=""; [ "${1:-}" = -a ] && { extra=$2; shift 2; }; [ "${1:-}" = -- ] && shift
cache=${VM_CACHE:-/var/cache/sandbox-test-kernels}; mkdir -p "$cache"; out=${VMOUT:-$(mktemp -d)}; mkdir -p "$out"; rm -f "$out/.rc"
need() { local p; for p in "$@"; do dpkg -s "$p" >/dev/null 2>&1 || { apt-get update -qq; apt-get install -y -qq --no-install-recommends "$@" >/dev/null; return; }; done; }
# ---- what runs as PID 1 inside
cat > "$out/.init" <<INIT
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH HOME=/tmp LANG=C.UTF-8
mountpoint -q /proc || mount -t proc proc /proc; mount -t sysfs sys /sys 2>/dev/null; mount -t securityfs s /sys/kernel/security 2>/dev/null
mount -t tmpfs t /run; mount -t tmpfs -o mode=1777 t /tmp; mkdir -p /dev/pts /dev/shm; mount -t devpts -o gid=5,mode=620,ptmxmode=666 d /dev/pts; mount -t tmpfs -o mode=1777 t /dev/shm
ln -sf /proc/self/fd /dev/fd; ln -sf fd/0 /dev/stdin; ln -sf fd/1 /dev/stdout; ln -sf fd/2 /dev/stderr
mkdir -p "$out" && \$MOUNT_OUT
ip link set lo up 2>/dev/null || python3 -c 'import fcntl,socket,struct; s=socket.socket(); fcntl.ioctl(s,0x8914,struct.pack("16sH14x",b"lo",0x49))'
mkdir -p "$PWD" 2>/dev/null; cd "$PWD"
$(printf '%q ' "$@") </dev/null >"$out/.stdout" 2>"$out/.stderr"; echo \$? >"$out/.rc"; sync; eval "\$PID1_END"
INIT
chmod +x "$out/.init"
case $which in
uml)
  need user-mode-linux
  cat > "$out/.boot" <<B
#!/bin/bash
MOUNT_OUT="mount -t hostfs -o $out o $out"; . $out/.init; echo o > /proc/sysrq-trigger; sleep 5
B
  chmod +x "$out/.boot"
  timeout "${VM_TIMEOUT:-600}" linux.uml mem=1G root=/dev/root rootfstype=hostfs rootflags=/ ro init="$out/.boot" con=null con0=null,fd:1 ssl=null quiet $extra </dev/null >"$out/.console" 2>&1 || true
  ;;
6.1|6.12)
  need qemu-system-x86 qemu-system-common busybox-static cpio xz-utils
  if ! ls "$cache/$which"/vmlinuz >/dev/null 2>&1; then
    pkg=linux-image-cloud-amd64; [ $which = 6.12 ] && pkg=linux-image-6.12-cloud-amd64
    apt-get update -qq; real=$(apt-cache depends $pkg | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -1)
    t=$(mktemp -d); chmod 755 "$t"; (cd "$t" && apt-get download -q "$real" >/dev/null 2>&1 && dpkg-deb -x *.deb x)
    mkdir -p "$cache/$which"; cp "$t"/x/boot/vmlinuz-* "$cache/$which/vmlinuz"
    r=$t/irfs; mkdir -p "$r"/{bin,dev,proc,sys,new,mod}; cp /bin/busybox "$r/bin/"; ln -s busybox "$r/bin/sh"
    for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci fuse virtiofs; do   # in load order; those built in are just not found
      f=$(find "$t/x/lib/modules" -name "$m.ko*" | head -1); [ -n "$f" ] || continue
      case $f in *.xz) xz -dc "$f" > "$r/mod/$m.ko";; *) cp "$f" "$r/mod/$m.ko";; esac; echo "$m" >> "$r/mod/order"; done
    cat > "$r/init" <<'I'
#!/bin/sh
/bin/busybox mount -t proc p /proc; /bin/busybox mount -t devtmpfs d /dev
[ -f /mod/order ] && for m in $(/bin/busybox cat /mod/order); do /bin/busybox insmod /mod/$m.ko; done
/bin/busybox mount -t virtiofs -o ro host /new || /bin/busybox echo "NO ROOT"
/bin/busybox mount -t devtmpfs d /new/dev
for w in $(/bin/busybox cat /proc/cmdline); do case $w in sbxout=*) o=${w#sbxout=};; esac; done
export MOUNT_OUT="mount -t virtiofs out $o" PID1_END='echo o > /proc/sysrq-trigger; sleep 9'
# switch_root, not chroot: in a chroot the kernel refuses unshare(CLONE_NEWUSER) with EPERM, and bwrap would fail
/bin/busybox mount --move /proc /new/proc; exec /bin/busybox switch_root /new /bin/bash "$o/.init"
I
    chmod +x "$r/init"; (cd "$r" && find . | cpio -o -H newc --quiet) > "$cache/$which/initramfs"; rm -rf "$t"
  fi
  sd=$(mktemp -d); pids=()
  /usr/lib/qemu/virtiofsd --socket-path="$sd/root" -o source=/ -o cache=always -o sandbox=chroot >"$out/.fsd1" 2>&1 & pids+=($!)
  /usr/lib/qemu/virtiofsd --socket-path="$sd/out" -o source="$out" -o cache=none -o sandbox=chroot >"$out/.fsd2" 2>&1 & pids+=($!)
  for i in $(seq 50); do [ -S "$sd/root" ] && [ -S "$sd/out" ] && break; sleep .1; done
  # TCG, not KVM: in a virtual machine /dev/kvm may open, and the guest hang all the same
  timeout "${VM_TIMEOUT:-600}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${VM_MEM:-1024}" -nodefaults -display none -no-reboot \
    -object memory-backend-memfd,id=mem,size="${VM_MEM:-1024}M",share=on -numa node,memdev=mem -serial file:"$out/.console" \
    -chardev socket,id=c0,path="$sd/root" -device vhost-user-fs-pci,chardev=c0,tag=host \
    -chardev socket,id=c1,path="$sd/out" -device vhost-user-fs-pci,chardev=c1,tag=out -device virtio-rng-pci \
    -kernel "$cache/$which/vmlinuz" -initrd "$cache/$which/initramfs" -append "console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off sbxout=$out $extra" </dev/null || true
  kill "${pids[@]}" 2>/dev/null || true; rm -rf "$sd"
  ;;
*) echo "unknown kernel $which" >&2; exit 2;;
esac
cat "$out/.stdout" 2>/dev/null || true; cat "$out/.stderr" >&2 2>/dev/null || true
[ -f "$out/.rc" ] || { echo "vm-run: the guest did not finish; console:" >&2; tail -20 "$out/.console" >&2; exit 125; }
exit "$(cat "$out/.rc")"
