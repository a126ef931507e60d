# Sourced by `image` and `erdma`: apt for a release of Debian that this machine need not have, with nothing installed yet.

# open_apt FOLDER SUITE PACKAGES: keeps its state in FOLDER, takes PACKAGES (as apt_preferences names them) from the backports
# of SUITE and all others from SUITE. Sets `options`, the first arguments of every call of apt; lists are fetched.
open_apt() {
    local apt=$1 suite=$2 backports=$3 mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$apt"/{lists,archives}/partial
    mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Identifier: Packages' | awk '$1 == "Debian" { print $2; exit }')
    if [ -z "$mirror" ]; then
        echo "$0: apt on this machine knows no Debian mirror: name one in /etc/apt/sources.list" >&2
        return 1
    fi
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$suite" "$keys" "$mirror" "$suite-backports" >"$apt/sources"
    printf 'Package: %s\nPin: release n=%s-backports\nPin-Priority: 900\n' "$backports" "$suite" >"$apt/preferences"
    : >"$apt/status"
    options=(-qq -o "Dir::Etc::SourceList=$apt/sources" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::Etc::Preferences=$apt/preferences" -o Dir::Etc::PreferencesParts=/dev/null
        -o "Dir::State::Lists=$apt/lists" -o "Dir::State::Status=$apt/status" -o "Dir::Cache::Archives=$apt/archives"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Install-Recommends=0 -o APT::Sandbox::User=root
        -o APT::Architecture=amd64 -o APT::Update::Post-Invoke-Success::= -o DPkg::Post-Invoke::=)
    apt-get "${options[@]}" update >&2
}
