#!/bin/sh
# Downloads what the scenario builds, with the machine's own package clients. Usage: fetch.sh DIRECTORY
# A pure-Python package's sdist with its test suite, an npm tarball with its tests (and, beside it, the test runner that
# they need), and a small Debian source package with a Makefile. Nothing of it is executed here.
set -eu
mkdir -p "$1"
cd "$1"

[ -e sdist.done ] || {
	python3 -m pip download -q --no-deps --no-binary :all: inflection==0.5.1 -d .
	touch sdist.done
}
[ -e npm.done ] || {
	npm pack --silent minimist@1.2.8 >/dev/null
	mkdir -p runner
	npm install --silent --ignore-scripts --no-audit --no-fund --prefix runner tape@4 >/dev/null
	touch npm.done
}
[ -e deb.done ] || {
	mkdir -p apt/lists/partial
	: >apt/list
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ -e "$file" ] && sed -n 's/^deb /deb-src /p' "$file" >>apt/list
	done
	mkdir -p apt/parts
	for file in /etc/apt/sources.list.d/*.sources; do
		[ -e "$file" ] && sed 's/^Types:.*/Types: deb-src/' "$file" >"apt/parts/$(basename "$file")"
	done
	here=$(pwd)
	apt() { apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$here/apt/list" -o Dir::Etc::SourceParts="$here/apt/parts" \
		-o Dir::State::Lists="$here/apt/lists" "$@"; }
	apt update
	apt source --download-only tree
	rm -rf apt
	touch deb.done
}
chmod -R a+rX .
