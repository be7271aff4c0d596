/* Where every aclnn...GetWorkspaceSize arrives, with its name in rax: keeps all argument registers
   as they came, and hands them on together with the arguments on the stack. */
  .text
  .globl fake_aclnn_entry
  .hidden fake_aclnn_entry
  .type fake_aclnn_entry, @function
fake_aclnn_entry:
  push %rbp
  mov %rsp, %rbp
  sub $176, %rsp
  mov %rdi, 0(%rsp)
  mov %rsi, 8(%rsp)
  mov %rdx, 16(%rsp)
  mov %rcx, 24(%rsp)
  mov %r8, 32(%rsp)
  mov %r9, 40(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movups %xmm2, 80(%rsp)
  movups %xmm3, 96(%rsp)
  movups %xmm4, 112(%rsp)
  movups %xmm5, 128(%rsp)
  movups %xmm6, 144(%rsp)
  movups %xmm7, 160(%rsp)
  mov %rax, %rdi
  mov %rsp, %rsi
  lea 16(%rbp), %rdx
  call fake_aclnn_arguments
  leave
  ret
  .size fake_aclnn_entry, .-fake_aclnn_entry
  .section .note.GNU-stack, "", @progbits
