"""Parameters of modules on the command line: kvm.hpage= on s390x."""

from hugepage_qa.model.cstring import kstrtoul
from hugepage_qa.model.draft import Draft
from hugepage_qa.model.prediction import Exactly
from hugepage_qa.model.rules import KVM_HPAGE


def expect(draft: Draft) -> None:
    """Add what follows from kvm.hpage=."""
    values = [value for value in draft.values("kvm.hpage") if value is not None]
    if not values:
        return
    if draft.machine.architecture != "s390x":
        draft.remark("kvm.hpage= is a parameter of s390x only; it has no effect here")
    elif not draft.machine.interfaces.get("kvm"):
        draft.leave_open("kvm/hpage", "the kvm module is not loaded")
    else:
        number = kstrtoul(values[-1])
        if number is None:
            draft.leave_open("kvm/hpage", f"kvm.hpage={values[-1]} is no number")
        else:
            draft.expect("kvm/hpage", Exactly(number), KVM_HPAGE)
