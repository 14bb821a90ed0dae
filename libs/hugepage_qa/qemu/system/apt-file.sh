#!/bin/sh
# Stands before the real apt-file in PATH: whose file an installed one is needs no search through the indices of the
# whole distribution. tmt asks that in every run, and under TCG the search takes a minute.
if [ $# -eq 3 ] && [ "$1 $2" = "search --package-only" ] && owner=$(dpkg-query --search "$3" 2>/dev/null); then
    echo "${owner%%[:,]*}"
    exit
fi
exec /usr/bin/apt-file "$@"
